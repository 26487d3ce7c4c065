"""Makes one C++ source of all C++ blocks of the documentation's pages:

snippets.py <root> <output> <page>... [--marked <page>...]

A block that is marked as a program becomes one, chosen by the name under which the executable is started; so does one
that is marked as resuming, with what resuming.h gives it. Any other block has to compile as part of a training: it gets
the variables of _CONTEXT. Of pages behind --marked only blocks count whose mark says so. Errors show the page and its
line.
"""

import os
import re
import sys

from page_blocks import blocks_of

_HEADERS = ("cstdio", "csignal", "cstdlib", "cstring", "fstream", "stdexcept", "string", "string_view", "torch/torch.h")
_CONTEXT = """[[maybe_unused]] lockstep::World& world, [[maybe_unused]] const lockstep::ProcessGroup& group,
    [[maybe_unused]] torch::nn::Sequential& model, [[maybe_unused]] const lockstep::FashionMnist& train,
    [[maybe_unused]] const lockstep::FashionMnist& test, [[maybe_unused]] at::Tensor x, [[maybe_unused]] at::Tensor y,
    [[maybe_unused]] at::Tensor tensor, [[maybe_unused]] int argc, [[maybe_unused]] char** argv,
    [[maybe_unused]] lockstep::DistributedDataParallel<torch::nn::Sequential>& ddp,
    [[maybe_unused]] torch::optim::SGD& optimizer, [[maybe_unused]] lockstep::DistributedSampler& sampler"""
_RESUMING = """const lockstep::World& world, const resuming::Numbers& train,
    lockstep::DistributedDataParallel<torch::nn::Sequential>& ddp, torch::optim::SGD& optimizer,
    [[maybe_unused]] lockstep::DistributedSampler& sampler"""
_MARKS = ("program", "resumes", "compiled")


def _at(block, line=0):
    return f'#line {block.line + line} "{block.page}"\n'


def _program(block, name):
    body = re.sub(r"^#include [^\n]*$", "", block.body, flags=re.MULTILINE)
    if re.search(r"^int main\(", body, re.MULTILINE) is None:
        raise ValueError(f"{block.page}:{block.line}: the program {name} has no main()")
    # Only the global main() returns 0 by itself.
    body = re.sub(r"^\}\n*\Z", "return 0;\n}\n", body, flags=re.MULTILINE)
    return f"namespace program_{name} {{\n{_at(block)}{body}\n}}  // namespace program_{name}\n"


def _resuming(block, name):
    return (f"void resume_{name}({_RESUMING}) {{\n[[maybe_unused]] const int epochs = 2;\n"
            f"{{\n{_at(block)}{block.body}}}\n}}\n"
            f"int call_resume_{name}(int argc, char** argv) {{ return resuming::run(resume_{name}, argc, argv); }}\n")


def _fragment(block, number):
    return f"[[maybe_unused]] void fragment_{number}({_CONTEXT}) {{\n{{\n{_at(block)}{block.body}}}\n}}\n"


def source_of(found):
    """found: the C++ blocks of all pages."""
    includes, programs, text = set(), {}, ""
    for number, block in enumerate(found):
        includes |= set(re.findall(r"^#include [<\"]([^>\"]+)[>\"]$", block.body, re.MULTILINE))
        name, resumes = block.note("program"), block.note("resumes")
        if name is None and resumes is None:
            text += _fragment(block, number)
            continue
        started_as = name or f"resume_{resumes}"
        if started_as in programs:
            raise ValueError(f"{block.page}:{block.line}: there is another program {started_as}")
        programs[started_as] = f"program_{name}::main" if name else f"call_resume_{resumes}"
        text += _program(block, name) if name else _resuming(block, resumes)
    head = "".join(f"#include <{name}>\n" for name in sorted({*_HEADERS, *includes} - {"lockstep/lockstep.h"}))
    table = "".join(f'  if (name == "{name}") return call({main}, argc, argv);\n' for name, main in programs.items())
    return f"""// Made by tests/docs/snippets.py.
{head}#include "lockstep/lockstep.h"
#include "tests/docs/resuming.h"

namespace {{
using namespace std::chrono_literals;
int call(int (*main)(), int, char**) {{ return main(); }}
int call(int (*main)(int, char**), int argc, char** argv) {{ return main(argc, argv); }}
}}  // namespace

namespace {{
{text}}}  // namespace

#line 1 "snippets"
int main(int argc, char** argv) {{
  std::string_view name = argv[0];
  name = name.substr(name.rfind('/') + 1);
{table}  std::fprintf(stderr, "no page has the program %s\\n", argv[0]);
  return 2;
}}
"""


def _code_of(page, root):
    return [block for block in blocks_of(page, os.path.relpath(page, root)) if block.language == "cpp"]


def main():
    root, output, *pages = sys.argv[1:]
    first_marked = pages.index("--marked") if "--marked" in pages else len(pages)
    found = []
    for page in sorted(pages[:first_marked]):
        found += _code_of(page, root)
    for page in sorted(pages[first_marked + 1 :]):
        found += [block for block in _code_of(page, root) if any(block.note(mark) is not None for mark in _MARKS)]
    with open(output, "w", encoding="utf-8") as file:
        file.write(source_of(found))


if __name__ == "__main__":
    main()
