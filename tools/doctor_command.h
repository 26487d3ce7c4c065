// `lockstep doctor`: checks this machine before a job starts on it; `lockstep env`: what a bug report needs.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace lockstep::tools {

struct DoctorOptions {
  std::string program;  // whose libtorch is looked at; empty: none
  bool json = false;
};
CLI::App* add_doctor(CLI::App& app, DoctorOptions& options);
// 0, or 1 if a check has found an error.
int doctor_command(const DoctorOptions& options);

struct EnvOptions {
  bool json = false;
};
CLI::App* add_env(CLI::App& app, EnvOptions& options);
int env_command(const EnvOptions& options);

}  // namespace lockstep::tools
