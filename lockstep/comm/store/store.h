// A Store is the small key-value map that all ranks of a job share. store -> rendezvous.
// Thread-safe. Every call that can block takes a Deadline; at it, the call throws Error{timeout} within 0.1 s.
// Keys: 1 byte to 8 KiB; values: up to 8 MiB; beyond: Error{invalid_argument} that states the limit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"

namespace lockstep {

inline constexpr std::size_t kMaxStoreKeyBytes = std::size_t{8} << 10;    // of one key
inline constexpr std::size_t kMaxStoreValueBytes = std::size_t{8} << 20;  // of one value
inline constexpr std::size_t kMaxStoreKeys = std::size_t{1} << 20;        // of a store
inline constexpr std::size_t kMaxStoreBytes = std::size_t{256} << 20;     // of all keys and values of a store

class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, ByteView value, Deadline deadline) = 0;
  // Blocks until the key exists.
  virtual Bytes get(std::string_view key, Deadline deadline) = 0;
  // Adds to a decimal integer (a missing key counts as 0) and returns the sum. Error{invalid_argument} if not a number.
  virtual std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) = 0;
  // Stores `desired` if the key holds `expected`, or if it is missing and `expected` is empty. Returns what the key
  // holds afterwards (`expected` if it is still missing), as PyTorch's Store does.
  virtual Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) = 0;
  // Blocks until all keys exist or the deadline passes; returns the keys that are still missing. Does not throw
  // timeout.
  virtual std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) = 0;
  // Whether all keys exist now; does not wait for them.
  virtual bool check(const std::vector<std::string>& keys, Deadline deadline) = 0;
  // True if the key existed.
  virtual bool remove(std::string_view key, Deadline deadline) = 0;
  // Leaves a last will: if this process ends, or is cut off for longer than a moment, the store sets `key` to `value`,
  // unless the key exists. An empty value withdraws it. Stores that cannot notice the end of a process do nothing.
  virtual void last_will(std::string_view key, ByteView value, Deadline deadline);
};

inline void Store::last_will(std::string_view /*key*/, ByteView /*value*/, Deadline /*deadline*/) {}

}  // namespace lockstep
