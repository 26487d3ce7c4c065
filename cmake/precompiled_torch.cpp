// A source for the target that owns the precompiled header.
