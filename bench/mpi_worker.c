/* Times MPI_Allreduce when it is told to; a worker of bench_all_reduce, built once with each MPI that is installed.
 *
 * Rank 0 prints {"ready": true} after a first all-reduce, then answers each line "run BYTES REPETITIONS CALLS" of
 * standard input with {"seconds": [...]}: for each repetition, from the return of a barrier to the return of the last of
 * CALLS all-reduces, divided by CALLS, on the slowest rank. Ranks that wait in MPI take all of a core, so between lines
 * they sleep in reads of named pipes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int rank, ranks;

static void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "mpi_worker: rank %d: ", rank);
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

struct command {
  long bytes; /* 0: the end */
  long repetitions;
  long calls;
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The pipes through which rank 0 wakes the others: one for each of them on rank 0, one on every other rank. */
static int* open_pipes(void) {
  char directory[64] = "/tmp/lockstep-bench-XXXXXX";
  char path[96];
  int* pipes = calloc((size_t)ranks, sizeof *pipes);
  if (pipes == NULL) fail("out of memory");
  if (rank == 0 && mkdtemp(directory) == NULL) fail("cannot make %s", directory);
  MPI_Bcast(directory, sizeof directory, MPI_CHAR, 0, MPI_COMM_WORLD);
  for (int other = 1; other < ranks; ++other) {
    snprintf(path, sizeof path, "%s/%d", directory, other);
    if (rank == 0 && mkfifo(path, 0600) != 0) fail("cannot make %s", path);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  for (int other = 1; other < ranks; ++other) {
    snprintf(path, sizeof path, "%s/%d", directory, other);
    if (rank != 0 && rank != other) continue;
    const int pipe = open(path, (rank == 0 ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
    if (pipe < 0) fail("cannot open %s", path);
    pipes[rank == 0 ? other : 0] = pipe;
    if (rank == 0) unlink(path);
  }
  if (rank == 0) rmdir(directory);
  return pipes;
}

static struct command next_command(const int* pipes) {
  struct command command = {0, 0, 0};
  if (rank != 0) {
    if (read(pipes[0], &command, sizeof command) != sizeof command) command.bytes = 0;
    return command;
  }
  char line[256];
  if (fgets(line, sizeof line, stdin) != NULL) {
    if (sscanf(line, "run %ld %ld %ld", &command.bytes, &command.repetitions, &command.calls) != 3 ||
        command.bytes < 4 || command.bytes / 4 > 2147483647 || command.repetitions < 1 || command.calls < 1) {
      fail("expected \"run BYTES REPETITIONS CALLS\", got %s", line);
    }
  }
  for (int other = 1; other < ranks; ++other) {
    if (write(pipes[other], &command, sizeof command) != sizeof command) fail("rank %d is gone", other);
  }
  return command;
}

static void all_reduce(float* data, int count) {
  MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Checks the result of one repetition; then leaves zeros, which stay zeros however often they are added up. */
static void check_once(float* data, int count) {
  const float expected = (float)ranks * (float)(ranks + 1) / 2;
  for (int i = 0; i < count; ++i) data[i] = (float)(rank + 1);
  all_reduce(data, count);
  for (int i = 0; i < count; ++i) {
    if (data[i] != expected) fail("a wrong result: %g instead of %g", data[i], expected);
  }
  memset(data, 0, (size_t)count * sizeof *data);
}

static void measure(float* data, int count, long repetitions, long calls) {
  double* seconds = malloc((size_t)repetitions * sizeof *seconds);
  if (seconds == NULL) fail("out of memory");
  check_once(data, count);
  for (long i = 0; i < repetitions; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now();
    for (long call = 0; call < calls; ++call) all_reduce(data, count);
    seconds[i] = (now() - start) / (double)calls;
  }
  MPI_Allreduce(MPI_IN_PLACE, seconds, (int)repetitions, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("{\"seconds\": [");
    for (long i = 0; i < repetitions; ++i) printf("%s%.9f", i == 0 ? "" : ", ", seconds[i]);
    printf("]}\n");
    fflush(stdout);
  }
  free(seconds);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  float* data = malloc(sizeof *data);
  long bytes = sizeof *data;
  if (data == NULL) fail("out of memory");
  check_once(data, 1);
  int* pipes = open_pipes();
  if (rank == 0) {
    puts("{\"ready\": true}");
    fflush(stdout);
  }
  for (;;) {
    const struct command command = next_command(pipes);
    if (command.bytes == 0) break;
    if (command.bytes != bytes) {
      free(data);
      data = malloc((size_t)command.bytes);
      if (data == NULL) fail("out of memory");
      bytes = command.bytes;
    }
    measure(data, (int)(bytes / 4), command.repetitions, command.calls);
  }
  free(data);
  free(pipes);
  MPI_Finalize();
  return 0;
}
