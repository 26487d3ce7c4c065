// The declarations of Gloo that libtorch's ProcessGroupGloo.hpp needs: libtorch's library contains Gloo, but it does
// not ship Gloo's headers. The build makes the headers that it includes resolve to this one. Declarations only:
// libtorch alone creates objects of these classes and calls virtual functions of Store.
#pragma once

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

namespace rendezvous {

class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace rendezvous

namespace transport {

class Device;
class UnboundBuffer;

}  // namespace transport
}  // namespace gloo
