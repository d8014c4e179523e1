#include "interpreter/variables.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

namespace diglot::interpreter {

namespace {

template <typename T>
std::vector<T> read(std::ifstream& file, std::size_t offset, std::size_t count) {
  std::vector<T> values(count);
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(count * sizeof(T)));
  if (!file) values.clear();
  return values;
}

bool starts_with(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

}  // namespace

std::vector<Variable> shared_variables() {
  std::vector<Variable> variables;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&shared_variables), &info) == 0) return variables;
  std::ifstream file(info.dli_fname, std::ios::binary);
  const auto header = read<ElfW(Ehdr)>(file, 0, 1);
  if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0) return variables;
  const auto sections = read<ElfW(Shdr)>(file, header[0].e_shoff, header[0].e_shnum);
  for (const ElfW(Shdr) & section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const auto symbols =
        read<ElfW(Sym)>(file, section.sh_offset, section.sh_size / sizeof(ElfW(Sym)));
    const ElfW(Shdr) & strings = sections[section.sh_link];
    auto names = read<char>(file, strings.sh_offset, strings.sh_size);
    names.push_back('\0');
    for (const ElfW(Sym) & symbol : symbols) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_TLS || symbol.st_shndx == SHN_UNDEF) continue;
      if (symbol.st_size == 0 || symbol.st_name >= names.size()) continue;
      const char* const name = names.data() + symbol.st_name;
      if (starts_with(name, "_ZN6diglot11interpreter") ||
          starts_with(name, "_ZZN6diglot11interpreter")) {
        continue;
      }
      const bool is_guard = starts_with(name, "_ZGV") || starts_with(name, "__tls_guard");
      variables.push_back({symbol.st_value, symbol.st_size, !is_guard, name});
    }
  }
  std::sort(variables.begin(), variables.end(),
            [](const Variable& a, const Variable& b) { return a.offset < b.offset; });
  return variables;
}

}  // namespace diglot::interpreter
