// A whole training on Fashion-MNIST, as one rank runs it.
#pragma once

struct Options;
namespace lockstep {
class World;
}

// Collective. Ends after a step, with a checkpoint, if the job is asked to stop.
void train(const Options& o, const lockstep::World& world);
