// The job token: 32 secret bytes that only the processes of a job hold. Never printed, never in argv.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep {

class Token {
 public:
  static constexpr std::size_t kBytes = 32;

  // Fresh, from the kernel's random source.
  static Token generate();
  // Reads a file of 64 hexadecimal digits. Error{unauthorized} if group or others may read it or it is owned by another
  // user; Error{invalid_argument} if it is missing (the text says which file to copy from where) or malformed.
  static Token from_file(const std::string& path);
  // The user's own token, ~/.lockstep/token (mode 0600), made on first use without a race between processes.
  static Token from_home();
  // The same, but none is made.
  static std::optional<Token> from_home_if_any();
  // The same, for a job whose processes are all on this host: without a home that can be written to, the token is kept
  // in $XDG_RUNTIME_DIR or /tmp, in a folder of this user. Error{unauthorized} if the folder belongs to another user.
  static Token from_this_host();
  // Reads a descriptor made by to_fd(), at offset 0. It remains open, but programs that this process executes later do
  // not inherit it. Error{invalid_argument} if it is anything else, for example a number that was closed and reused.
  static Token from_fd(int fd);
  // Error{corrupt_data} unless there are kBytes of them.
  static Token from_bytes(ByteView bytes);
  // For a process of this job: LOCKSTEP_TOKEN_FD, else LOCKSTEP_TOKEN_FILE, else from_home().
  static Token for_this_process();
  // "whose token is from /home/me/.lockstep/token": the same choice, for messages.
  static std::string origin_for_this_process();

  // An anonymous, sealed memory file to hand to children (close-on-exec; the child's side clears it).
  internal::UniqueFd to_fd() const;

  const std::array<std::uint8_t, kBytes>& bytes() const { return bytes_; }

 private:
  std::array<std::uint8_t, kBytes> bytes_{};
};

}  // namespace lockstep
