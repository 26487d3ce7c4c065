// A ChaosProxy as a program: chaos_proxy <target host:port> [setting ...], prints the endpoint at which it listens, and
// takes orders, one a line, from standard input: freeze, thaw, cut, refuse, connections (prints how many). It ends with
// its input.
//   listen=host:port  seed=1  delay_ms=50  jitter_ms=50  bytes_per_second=125000  largest_piece_bytes=1000
//   cut|reset|half_close|freeze|flip=<connection>:<to_server|to_client>:<bytes>
#include <cstdio>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "tests/support/chaos_proxy.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

const std::map<std::string, Fault::Kind> kKinds = {{"cut", Fault::Kind::cut},
                                                   {"reset", Fault::Kind::reset},
                                                   {"half_close", Fault::Kind::half_close},
                                                   {"freeze", Fault::Kind::freeze},
                                                   {"flip", Fault::Kind::flip}};

struct Settings {
  ChaosPlan plan;
  Endpoint listen{"127.0.0.1", 0};
  std::map<int, Fault> faults;

  void take(const std::string& name, const std::string& value) {
    if (const auto kind = kKinds.find(name); kind != kKinds.end()) {
      const std::size_t first = value.find(':');
      const std::size_t second = value.find(':', first + 1);
      if (second == std::string::npos) throw std::invalid_argument(value);
      const Way way = value.substr(first + 1, second - first - 1) == "to_client" ? Way::to_client : Way::to_server;
      faults[std::stoi(value)] = {kind->second, way, std::stoull(value.substr(second + 1))};
    } else if (name == "listen") {
      listen = parse_endpoint(value);
    } else if (name == "seed") {
      plan.seed = std::stoull(value);
    } else if (name == "delay_ms") {
      plan.delay = std::chrono::milliseconds(std::stoi(value));
    } else if (name == "jitter_ms") {
      plan.jitter = std::chrono::milliseconds(std::stoi(value));
    } else if (name == "bytes_per_second") {
      plan.bytes_per_second = std::stoull(value);
    } else if (name == "largest_piece_bytes") {
      plan.largest_piece_bytes = std::stoull(value);
    } else {
      throw std::invalid_argument(name);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    Settings settings;
    for (int i = 2; i < argc; ++i) {
      const std::string setting = argv[i];
      const std::size_t equals = setting.find('=');
      if (equals == std::string::npos) throw std::invalid_argument(setting);
      settings.take(setting.substr(0, equals), setting.substr(equals + 1));
    }
    settings.plan.fault = [&](int connection) {
      const auto found = settings.faults.find(connection);
      return found == settings.faults.end() ? Fault() : found->second;
    };
    ChaosProxy proxy(parse_endpoint(argv[1]), settings.plan, settings.listen);
    std::cout << to_string(proxy.endpoint()) << std::endl;
    for (std::string order; std::getline(std::cin, order);) {
      if (order == "freeze") proxy.freeze();
      if (order == "thaw") proxy.thaw();
      if (order == "cut") proxy.cut_all();
      if (order == "refuse") proxy.refuse();
      if (order == "connections") std::cout << proxy.connections() << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "chaos_proxy: " << error.what() << std::endl;
    return 2;
  }
}
