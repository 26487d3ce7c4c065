#include "examples/fashion_mnist/metrics.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

void append_metrics(const std::filesystem::path& file, const EpochMetrics& metrics) {
  const nlohmann::ordered_json line = {{"epoch", metrics.epoch},
                                       {"train_loss", metrics.train_loss},
                                       {"val_loss", metrics.val_loss},
                                       {"val_accuracy", metrics.val_accuracy},
                                       {"samples_per_second", metrics.samples_per_second},
                                       {"communication_share", metrics.communication_share},
                                       {"world_size", metrics.world_size}};
  std::ofstream out(file, std::ios::app);
  out << line.dump() << '\n';
  out.close();
  if (!out) throw lockstep::Error(lockstep::ErrorKind::invalid_argument, "cannot write " + file.string());
}
