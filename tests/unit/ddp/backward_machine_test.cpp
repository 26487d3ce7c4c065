// The table, entry by entry, as docs/ARCHITECTURE.md prints it.
#include "lockstep/train/ddp/backward_machine.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace backward_machine_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

using S = BackwardState;
using E = BackwardEvent;
using A = BackwardAction;

struct Entry {
  S from;
  E event;
  S to;
  A action;
};

// Everything that is not listed is refused, and the state stays.
const std::vector<Entry> kEntries = {
    {S::idle, E::forward, S::armed, A::nothing},
    {S::idle, E::begin, S::collecting, A::start},
    {S::idle, E::stray_gradient, S::idle, A::nothing},
    {S::armed, E::forward, S::armed, A::nothing},
    {S::armed, E::begin, S::collecting, A::start},
    {S::armed, E::stray_gradient, S::armed, A::note_stray},
    {S::collecting, E::forward, S::collecting, A::nothing},
    {S::collecting, E::begin, S::collecting, A::nothing},
    {S::collecting, E::gradient, S::collecting, A::count},
    {S::collecting, E::end, S::finishing, A::finish},
    {S::collecting, E::lost, S::abandoned, A::release},
    {S::finishing, E::stray_gradient, S::finishing, A::nothing},
    {S::finishing, E::finished, S::idle, A::nothing},
    {S::finishing, E::finished_one, S::armed, A::nothing},
    {S::finishing, E::failed, S::abandoned, A::release},
    {S::abandoned, E::forward, S::armed, A::drain},
    {S::abandoned, E::begin, S::collecting, A::drain_and_start},
    {S::abandoned, E::stray_gradient, S::abandoned, A::nothing},
};

constexpr S kStates[] = {S::idle, S::armed, S::collecting, S::finishing, S::abandoned};
constexpr E kEvents[] = {E::forward, E::begin,    E::gradient,     E::stray_gradient, E::end,
                         E::lost,    E::finished, E::finished_one, E::failed};

}  // namespace

TEST_CASE("every state answers every event as the table says") {
  for (const S state : kStates) {
    for (const E event : kEvents) {
      BackwardTransition expected{state, A::refuse};
      for (const Entry& entry : kEntries) {
        if (entry.from == state && entry.event == event) expected = {entry.to, entry.action};
      }
      CAPTURE(std::string(to_string(state)));
      CAPTURE(std::string(to_string(event)));
      CHECK(next(state, event) == expected);
    }
  }
}

}  // namespace backward_machine_test
