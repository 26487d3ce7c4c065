#include "tools/checkpoint_command.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "tools/run_command.h"
#include "tools/standard_output.h"

namespace lockstep::tools {
namespace {

constexpr const char* kDiff = "diff";
constexpr const char* kCheckpoint =
    "A set, a safetensors file or the index of several, a .pt file, a directory of torch.distributed.checkpoint";

// NaN is no tolerance either: nothing is less than it.
std::string check_tolerance(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool is_right = !text.empty() && *end == '\0' && value >= 0;
  return is_right ? "" : "'" + text + "' is not a number of at least 0";
}

CLI::App* add_verb(CLI::App& checkpoint, const std::string& name, const std::string& summary) {
  CLI::App* verb = checkpoint.add_subcommand(name, summary);
  verb->prefix_command(false);
  verb->fallthrough(false);
  return verb;
}

void add_json(CLI::App* verb, CheckpointOptions& options) { verb->add_flag("--json", options.json, "Print JSON"); }

void add_output(CLI::App* verb, CheckpointOptions& options) {
  verb->add_option("in", options.path, kCheckpoint)->required();
  verb->add_option("out", options.other,
                   "The file or set to write: a name that ends with .safetensors, or DIR/step-0000000400 for a set")
      ->required();
  verb->add_option("--to", options.to, "Write OUT as a file or as a set, regardless of its name: file or set")
      ->check(CLI::IsMember({"file", "set"}));
  verb->add_flag("--force", options.force, "Replace OUT if it exists");
  add_json(verb, options);
}

void add_readers(CLI::App& checkpoint, CheckpointOptions& options) {
  CLI::App* ls = add_verb(checkpoint, "ls", "List the checkpoints of a directory, newest first; reads no tensors");
  ls->add_option("path", options.path, "The directory")->required();
  add_json(ls, options);
  ls->footer("Examples:\n  lockstep checkpoint ls checkpoints\n  lockstep checkpoint ls checkpoints --json\n");

  CLI::App* show = add_verb(checkpoint, "show", "Show the tensors, metadata and metrics of a checkpoint");
  show->add_option("path", options.path, kCheckpoint)->required();
  add_json(show, options);
  show->footer(
      "Examples:\n  lockstep checkpoint show checkpoints/step-0000000400\n  lockstep checkpoint show model.pt\n");

  CLI::App* verify =
      add_verb(checkpoint, "verify", "Read a checkpoint, or all those in a directory, in full to find damage");
  verify->add_option("path", options.path, "A checkpoint, or a directory of them")->required();
  verify->add_option("--token-file", options.token_file,
                     "Check signatures with this token, in place of LOCKSTEP_TOKEN_FILE or ~/.lockstep/token");
  verify->add_flag("--require-signature", options.require_signature, "Treat a set that is not signed as damaged");
  add_json(verify, options);
  verify->footer(
      "Exits with 1 if anything is damaged.\n\nExamples:\n  lockstep checkpoint verify checkpoints\n"
      "  lockstep checkpoint verify model.safetensors\n"
      "  lockstep checkpoint verify checkpoints --require-signature --token-file token\n");

  CLI::App* diff = add_verb(checkpoint, kDiff, "Compare the tensors of two checkpoints");
  diff->add_option("a", options.path, kCheckpoint)->required();
  diff->add_option("b", options.other, "The other checkpoint")->required();
  diff->add_option("--tolerance", options.tolerance,
                   "Treat numbers as equal if their absolute or relative difference is at most this")
      ->check(check_tolerance);
  add_json(diff, options);
  diff->footer(
      "Exits with 0 if they are equal, 1 if they differ, 2 if they cannot be read.\n\nExamples:\n"
      "  lockstep checkpoint diff run1/step-0000000400 run2/step-0000000400\n"
      "  lockstep checkpoint diff a.safetensors b.safetensors --tolerance 1e-6\n");
}

void add_writers(CLI::App& checkpoint, CheckpointOptions& options) {
  CLI::App* convert = add_verb(
      checkpoint, "convert", "Convert a checkpoint to one safetensors file, or to a set (a directory with a manifest)");
  add_output(convert, options);
  convert->footer(
      "Examples:\n  lockstep checkpoint convert checkpoints/step-0000000400 model.safetensors\n"
      "  lockstep checkpoint convert model.pt model.safetensors\n"
      "  lockstep checkpoint convert model.safetensors checkpoints/step-0000000400\n");

  CLI::App* strip = add_verb(checkpoint, "strip-prefix", "Copy a checkpoint and rename its tensors");
  add_output(strip, options);
  CLI::Option* prefix =
      strip->add_option("--prefix", options.prefix, "Remove this prefix from the names that begin with it");
  strip->add_option("--add-prefix", options.add_prefix, "Add this prefix to all names")->excludes(prefix);
  strip->callback([&options] {
    if (options.prefix.empty() && options.add_prefix.empty()) throw CLI::RequiredError("--prefix or --add-prefix");
  });
  strip->footer(
      "Examples:\n  lockstep checkpoint strip-prefix a.safetensors b.safetensors --prefix module.\n"
      "  lockstep checkpoint strip-prefix a.safetensors b.safetensors --add-prefix module.\n");

  CLI::App* prune = add_verb(checkpoint, "prune", "Remove checkpoints (sets) from a directory, except those to keep");
  prune->add_option("path", options.path, "The directory")->required();
  prune->add_option("--keep-last", options.rules.keep_last, "Keep this many checkpoints with the highest steps")
      ->required()
      ->check(CLI::Range(1, 1'000'000'000));
  prune->add_option("--keep-every", options.rules.keep_every, "Also keep the steps that are multiples of this; 0: none")
      ->check(CLI::Range(0, 1'000'000'000));
  CLI::Option* best =
      prune->add_option("--keep-best", options.rules.keep_best, "Also keep this many of the best checkpoints");
  best->check(CLI::Range(1, 1'000'000'000));
  CLI::Option* metric =
      prune->add_option("--metric", options.rules.metric, "The metric that decides which checkpoints are the best");
  best->needs(metric);
  metric->needs(best);
  prune
      ->add_flag("--higher-is-better", options.rules.higher_is_better,
                 "The best checkpoints have the highest metric, not the lowest")
      ->needs(metric);
  prune->add_flag("--dry-run", options.dry_run, "List the checkpoints that would be removed, without removing them");
  add_json(prune, options);
  prune->footer(
      "Damaged sets and single files are left alone; leftovers of killed writers are removed.\n\nExamples:\n"
      "  lockstep checkpoint prune checkpoints --keep-last 3 --dry-run\n"
      "  lockstep checkpoint prune checkpoints --keep-last 3 --keep-every 1000 --keep-best 2 --metric loss\n");
}

int run_verb(const std::string& name, const CheckpointOptions& options) {
  if (name == "ls") return list_checkpoints(options);
  if (name == "show") return show_checkpoint(options);
  if (name == "verify") return verify_checkpoints(options);
  if (name == kDiff) return diff_checkpoints(options);
  if (name == "convert") return convert_checkpoint(options);
  if (name == "strip-prefix") return rename_tensors(options);
  return prune_checkpoints(options);
}

}  // namespace

CLI::App* add_checkpoint(CLI::App& app, CheckpointOptions& options) {
  CLI::App* checkpoint =
      app.add_subcommand("checkpoint", "List, show, verify, compare, convert and remove checkpoints");
  add_readers(*checkpoint, options);
  add_writers(*checkpoint, options);
  checkpoint->require_subcommand(1);
  checkpoint->footer(
      "Examples:\n  lockstep checkpoint ls checkpoints\n  lockstep checkpoint verify checkpoints\n"
      "  lockstep checkpoint convert checkpoints/step-0000000400 model.safetensors\n"
      "  lockstep checkpoint --help-all\n");
  checkpoint->prefix_command(false);
  return checkpoint;
}

int checkpoint_command(const CLI::App& checkpoint, const CheckpointOptions& options) {
  const std::string name = checkpoint.get_subcommands().front()->get_name();
  const int failed = name == kDiff ? kUsageExitCode : EXIT_FAILURE;
  try {
    return end_standard_output(run_verb(name, options), failed);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "lockstep: there is not enough memory for this checkpoint\n");
  } catch (const std::exception& error) {  // mostly an Error; else, a file has gone meanwhile
    std::fprintf(stderr, "lockstep: %s\n", error.what());
  }
  return failed;
}

}  // namespace lockstep::tools
