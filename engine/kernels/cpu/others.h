// Other engines on the same cores: tells whether they compute, and waits until one rests.

#pragma once

#include <chrono>
#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#endif

namespace {

// How long a thread sleeps whose core the steps of other engines need, until it checks again.
constexpr std::chrono::microseconds kDoze{1000};

// Other engines' steps on the same cores, as engine/cpu/core_sharing.py writes them: when each one's last step
// began and ended. A step that ended by `since` is over.
struct Others {
  std::vector<const double*> steps;
  std::shared_ptr<const void> owner;  // of the memory of the steps
  double since = 0;

  int busy() const {
    int found = 0;
    for (const double* step : steps) found += busy(step, ended(step));
    return found;
  }

  // Sleeps until a busy engine rests, or for `kDoze`.
  void wait() const {
#if defined(__linux__)
    for (const double* step : steps) {
      const double end = ended(step);
      if (!busy(step, end)) continue;
      uint32_t known;
      std::memcpy(&known, &end, sizeof known);
      const timespec most{0, std::chrono::nanoseconds(kDoze).count()};
      syscall(SYS_futex, step + 1, FUTEX_WAIT, known, &most, nullptr, 0);
      return;
    }
#endif
    std::this_thread::sleep_for(kDoze);
  }

 private:
  bool busy(const double* step, double end) const {
    double began;
    __atomic_load(step, &began, __ATOMIC_RELAXED);
    return began > end || end > since;
  }

  static double ended(const double* step) {
    double end;
    __atomic_load(step + 1, &end, __ATOMIC_RELAXED);
    return end;
  }
};

// Wakes the threads that wait for the engine that writes this step.
inline void wake([[maybe_unused]] const double* step) {
#if defined(__linux__)
  syscall(SYS_futex, step + 1, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
}

}  // namespace
