# Stands for a libtorch of another version than Lockstep was built with.
set(Torch_VERSION 1.0.0)
set(Torch_FOUND TRUE)
