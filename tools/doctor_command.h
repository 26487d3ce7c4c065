// `lockstep doctor`: checks this machine before a job starts on it; `lockstep env`: what a bug report needs.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace lockstep::tools {

struct DoctorOptions {
  std::string program;  // whose libtorch is looked at; empty: none
  std::string hosts;    // as of `lockstep run`; empty: this machine
  std::string remote_path;
  bool json = false;
  bool line = false;  // for the host that asks
};
CLI::App* add_doctor(CLI::App& app, DoctorOptions& options);
// 0, or 1 if a check has found an error; 2 if the hosts cannot be read, 127 without ssh.
int doctor_command(const DoctorOptions& options);

struct EnvOptions {
  bool json = false;
};
CLI::App* add_env(CLI::App& app, EnvOptions& options);
int env_command(const EnvOptions& options);

}  // namespace lockstep::tools
