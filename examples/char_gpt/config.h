// The contents of char_gpt.toml. file -> Config. A value.
#pragma once

#include <cstdint>
#include <string>

struct Config {
  std::string text = "/usr/share/common-licenses/GPL-3", out = "out/char_gpt";

  struct Model {
    std::int64_t layers = 3, heads = 4, width = 128, context = 64;
  } model = {};

  struct Training {
    std::int64_t steps = 300, batch = 32, warmup_steps = 40, save_every = 100, seed = 1;
    double learning_rate = 2e-3, clip_norm = 1;
  } training = {};

  struct Sample {
    std::string prompt = "The ";
    std::int64_t characters = 300;
    double temperature = 0.7;
  } sample = {};
};

// Values that the file does not mention keep their defaults. std::runtime_error with file and line: a syntax error, a
// value of another type or out of range, an unknown name.
Config read_config(const std::string& path);
