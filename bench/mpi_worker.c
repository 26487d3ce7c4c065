/* Times a collective of float when it is told to; a worker of bench_all_reduce, built once with each MPI that is
 * installed: mpi_worker all_reduce|all_gather|reduce_scatter|broadcast|all_to_all
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

enum operation { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL };
static const char* const names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"};
static enum operation operation;

/* The longer side of the operation, a rank's part of it, and as much again as the longer side. */
struct memory {
  int count; /* elements, a multiple of the number of ranks */
  float *whole, *part, *other;
};

static struct memory make_memory(long bytes) {
  struct memory memory;
  const long count = bytes / 4 < ranks ? ranks : bytes / 4 / ranks * ranks;
  memory.count = (int)count;
  memory.whole = malloc((size_t)count * sizeof(float));
  memory.part = malloc((size_t)count / (size_t)ranks * sizeof(float));
  memory.other = malloc((size_t)count * sizeof(float));
  if (memory.whole == NULL || memory.part == NULL || memory.other == NULL) fail("out of memory");
  return memory;
}

static void free_memory(struct memory* memory) {
  free(memory->whole);
  free(memory->part);
  free(memory->other);
}

static void run(const struct memory* m) {
  const int part = m->count / ranks;
  switch (operation) {
    case ALL_REDUCE: MPI_Allreduce(MPI_IN_PLACE, m->whole, m->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(m->part, part, MPI_FLOAT, m->whole, part, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(m->whole, m->part, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(m->whole, m->count, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case ALL_TO_ALL: MPI_Alltoall(m->whole, part, MPI_FLOAT, m->other, part, MPI_FLOAT, MPI_COMM_WORLD); break;
  }
}

/* Checks the result of one repetition; then leaves zeros, which stay zeros however often they are added up. */
static void check_once(const struct memory* m) {
  const int part = m->count / ranks;
  for (int i = 0; i < m->count; ++i) m->whole[i] = (float)(rank + 1);
  for (int i = 0; i < part; ++i) m->part[i] = (float)(rank + 1);
  run(m);
  const float total = (float)ranks * (float)(ranks + 1) / 2;
  const float* result = operation == REDUCE_SCATTER ? m->part : operation == ALL_TO_ALL ? m->other : m->whole;
  const int by_rank = operation == ALL_GATHER || operation == ALL_TO_ALL;
  for (int i = 0; i < (operation == REDUCE_SCATTER ? part : m->count); ++i) {
    const float expected = by_rank ? (float)(i / part + 1) : operation == BROADCAST ? 1.0f : total;
    if (result[i] != expected) fail("a wrong result: %g instead of %g", result[i], expected);
  }
  memset(m->whole, 0, (size_t)m->count * sizeof(float));
  memset(m->part, 0, (size_t)part * sizeof(float));
}

static void measure(const struct memory* memory, long repetitions, long calls) {
  double* seconds = malloc((size_t)repetitions * sizeof *seconds);
  if (seconds == NULL) fail("out of memory");
  check_once(memory);
  for (long i = 0; i < repetitions; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now();
    for (long call = 0; call < calls; ++call) run(memory);
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
  while (argc > 1 && operation < ALL_TO_ALL && strcmp(names[operation], argv[1]) != 0) ++operation;
  if (argc != 2 || strcmp(names[operation], argv[1]) != 0) fail("usage: mpi_worker OPERATION");
  long bytes = 4;
  struct memory memory = make_memory(bytes);
  check_once(&memory);
  int* pipes = open_pipes();
  if (rank == 0) {
    puts("{\"ready\": true}");
    fflush(stdout);
  }
  for (;;) {
    const struct command command = next_command(pipes);
    if (command.bytes == 0) break;
    if (command.bytes != bytes) {
      free_memory(&memory);
      memory = make_memory(command.bytes);
      bytes = command.bytes;
    }
    measure(&memory, command.repetitions, command.calls);
  }
  free_memory(&memory);
  free(pipes);
  MPI_Finalize();
  return 0;
}
