// OUT/metrics.jsonl: one JSON object an epoch.
#pragma once

#include <filesystem>

struct EpochMetrics {
  int epoch = 0;
  double train_loss = 0;
  double val_loss = 0;
  double val_accuracy = 0;
  double samples_per_second = 0;   // over all ranks, training only
  double communication_share = 0;  // of the training time, mean over ranks
  int world_size = 1;
};

// Appends a line. Throws lockstep::Error naming the file if it cannot be written.
void append_metrics(const std::filesystem::path& file, const EpochMetrics& metrics);
