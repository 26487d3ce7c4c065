#include "lockstep/job/launch/symbols.h"

#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kLongName = 70;
constexpr std::size_t kMostOfName = 110;

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Without what templates and functions take, if it is long: "f<...>(...)".
std::string shortened(const std::string& name) {
  std::string text;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool is_operator = text.ends_with("operator") || text.ends_with("operator<") || text.ends_with("operator-");
    const bool opens = (name[i] == '<' || name[i] == '(') && !is_operator;
    const bool closes = (name[i] == '>' || name[i] == ')') && depth > 0;
    if (opens && depth++ == 0) {
      text += name[i];
      continue;
    }
    if (closes && --depth == 0 && text.size() > 1) text += i > 0 && name[i - 1] != text.back() ? "..." : "";
    if (depth == 0) text += name[i];
  }
  return text;
}

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                         &std::free);
  std::string name = status == 0 ? text.get() : symbol;
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  for (std::size_t at = name.find(kUnnamed); at != std::string::npos; at = name.find(kUnnamed, at)) {
    name.erase(at, kUnnamed.size());
  }
  return name;
}

std::string readable(const char* symbol) {
  std::string name = demangled(symbol);
  if (name.size() > kLongName) name = shortened(name);
  if (name.size() > kMostOfName) name = name.substr(0, kMostOfName - 3) + "...";
  return name;
}

std::string plain(const CodeAddress& place) {
  if (place.file.empty()) return fmt::format("0x{:x}, in no file", place.offset);
  return fmt::format("{}+0x{:x}", last_part(place.file), place.offset);
}

}  // namespace

namespace {

// Separate files with debug information are not searched, here or on servers.
int find_nothing(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
  return -1;
}

}  // namespace

class Symbols::File {
 public:
  explicit File(const std::string& path) {
    callbacks_.find_debuginfo = find_nothing;
    callbacks_.section_address = ::dwfl_offline_section_address;
    dwfl_ = ::dwfl_begin(&callbacks_);
    if (dwfl_ == nullptr) return;
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd) module_ = ::dwfl_report_offline(dwfl_, path.c_str(), path.c_str(), fd.get());
    if (module_ != nullptr) fd.release();  // it closes it
    ::dwfl_report_end(dwfl_, nullptr, nullptr);
  }
  ~File() {
    if (dwfl_ != nullptr) ::dwfl_end(dwfl_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Empty if it is not known.
  std::string name(const CodeAddress& place) const {
    const GElf_Addr address = address_in_module(place);
    const char* name = symbol_at(address);
    if (name == nullptr) return "";
    Dwfl_Line* line = ::dwfl_module_getsrc(module_, address);
    int number = 0;
    const char* source = line == nullptr ? nullptr : ::dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
    if (source != nullptr) return fmt::format("{} ({}:{})", readable(name), last_part(source), number);
    return fmt::format("{} ({})", readable(name), last_part(place.file));
  }

  // The same.
  std::string function(const CodeAddress& place) const {
    const char* name = symbol_at(address_in_module(place));
    return name == nullptr ? "" : demangled(name);
  }

 private:
  // 0 if it is not known.
  GElf_Addr address_in_module(const CodeAddress& place) const {
    GElf_Addr bias = 0;
    Elf* elf = module_ == nullptr ? nullptr : ::dwfl_module_getelf(module_, &bias);
    const GElf_Addr in_file = elf == nullptr ? 0 : address_of(elf, place.offset - (place.is_return ? 1 : 0));
    return in_file == 0 ? 0 : in_file + bias;
  }

  const char* symbol_at(GElf_Addr address) const {
    if (address == 0) return nullptr;
    GElf_Off offset = 0;
    GElf_Sym symbol{};
    const char* name = ::dwfl_module_addrinfo(module_, address, &offset, &symbol, nullptr, nullptr, nullptr);
    return symbol.st_size != 0 && offset >= symbol.st_size ? nullptr : name;
  }

  // Where the file says that this part of it is loaded; 0: nowhere.
  static GElf_Addr address_of(Elf* elf, std::uint64_t offset) {
    std::size_t count = 0;
    if (::elf_getphdrnum(elf, &count) != 0) return 0;
    for (std::size_t i = 0; i < count; ++i) {
      GElf_Phdr part;
      if (::gelf_getphdr(elf, static_cast<int>(i), &part) == nullptr || part.p_type != PT_LOAD) continue;
      if (offset >= part.p_offset && offset < part.p_offset + part.p_filesz) {
        return offset - part.p_offset + part.p_vaddr;
      }
    }
    return 0;
  }

  Dwfl_Callbacks callbacks_{};
  Dwfl* dwfl_ = nullptr;
  Dwfl_Module* module_ = nullptr;
};

Symbols::Symbols(Deadline until) : until_(until) {}

Symbols::~Symbols() = default;

std::string Symbols::name(const CodeAddress& place) {
  const auto known = names_.find(place);
  if (known != names_.end()) return known->second;
  return names_[place] = look_up(place);
}

std::string Symbols::function(const CodeAddress& place) {
  const auto known = functions_.find(place);
  if (known != functions_.end()) return known->second;
  const File* file = file_of(place);
  return functions_[place] = file == nullptr ? "" : file->function(place);
}

const Symbols::File* Symbols::file_of(const CodeAddress& place) {
  if (place.file.empty() || until_.expired()) return nullptr;
  std::unique_ptr<File>& file = files_[place.file];
  if (file == nullptr) file = std::make_unique<File>(place.file);
  return file.get();
}

std::string Symbols::look_up(const CodeAddress& place) {
  const File* file = file_of(place);
  const std::string name = file == nullptr ? "" : file->name(place);
  return name.empty() ? plain(place) : name;
}

}  // namespace lockstep::internal
