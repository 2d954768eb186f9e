// Threads that go through the phases of a step together: work shared out, then a barrier.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// How long a thread that waits keeps its core before it offers it to others.
constexpr int kSpins = 4000;
// How long one sleeps that others' steps want the core of, until it looks again.
constexpr std::chrono::microseconds kDoze{200};

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Other engines' steps on the same cores, as engine/cores.py writes them: when each one's last step
// began and ended. What ended by `since` is over.
struct Others {
  std::vector<const double*> steps;
  double since = 0;

  int busy() const {
    int found = 0;
    for (const double* step : steps) {
      double began, ended;
      __atomic_load(step, &began, __ATOMIC_RELAXED);
      __atomic_load(step + 1, &ended, __ATOMIC_RELAXED);
      found += began > ended || ended > since;
    }
    return found;
  }
};

// Who does the work. Once `*halted` is set nothing more is begun, and what was not done is left as it
// is. With `others` the threads are as many as there are cores, and within a phase each comes and goes
// as those leave it its share; the first one always stays. Nobody waits for a thread then, but for the
// work of each phase.
struct Crew {
  int threads;
  const int32_t* halted = nullptr;
  const Others* others = nullptr;
};

class Team {
 public:
  Team(const Crew& crew, int phases)
      : threads_(crew.threads),
        halted_(crew.halted),
        others_(crew.others),
        taken_(new Counter[static_cast<size_t>(phases) * threads_]()),
        done_(others_ ? new Counter[phases]() : nullptr) {}

  int threads() const { return threads_; }

  // Every thread says first how many there are: OpenMP may give fewer than it was asked for.
  void enter(int here) { present_.store(here, std::memory_order_relaxed); }

  // Calls work(i) for each i below `count`, shared out: every thread takes those of its own range in
  // order, then what others have left. Each phase is gone through once.
  template <typename Work>
  void share(int phase, int thread, int64_t count, Work work) {
    int64_t did = 0;
    for (int k = 0; k < threads_; ++k) {
      const int whose = thread + k < threads_ ? thread + k : thread + k - threads_;
      const int64_t begin = first(whose, count), end = first(whose + 1, count);
      auto& taken = taken_[static_cast<size_t>(phase) * threads_ + whose].count;
      while (!halted()) {
        if (away(thread)) {
          note(phase, std::exchange(did, 0));
          while (away(thread) && !over(phase, count)) std::this_thread::sleep_for(kDoze);
        }
        const int64_t i = begin + taken.fetch_add(1, std::memory_order_relaxed);
        if (i >= end) break;
        work(i);
        ++did;
      }
    }
    if (!others_) return;
    note(phase, did);
    spin([&] { return over(phase, count); });
  }

  // The first of a thread's own range.
  int64_t first(int thread, int64_t count) const { return count * thread / threads_; }

  // Nobody goes on before all are here, and what each wrote is seen by all.
  void wait() {
    if (others_) return;  // `share` has waited
    const int present = present_.load(std::memory_order_relaxed);
    if (present == 1) return;
    const int round = round_.load(std::memory_order_relaxed);
    if (here_.fetch_add(1, std::memory_order_acq_rel) + 1 == present) {
      here_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    spin([&] { return round_.load(std::memory_order_acquire) != round; });
  }

 private:
  struct alignas(64) Counter {
    std::atomic<int64_t> count{0};
  };

  bool halted() const { return halted_ && __atomic_load_n(halted_, __ATOMIC_RELAXED); }

  template <typename Over>
  static void spin(Over over) {
    for (int spins = 0; !over(); ++spins) {
      if (spins < kSpins)
        pause();
      else
        std::this_thread::yield();
    }
  }

  bool over(int phase, int64_t count) const {
    return done_[phase].count.load(std::memory_order_acquire) == count || halted();
  }

  // Whether others' steps want this thread's core.
  bool away(int thread) const {
    return others_ && thread && thread >= threads_ / (1 + others_->busy());
  }

  void note(int phase, int64_t did) {
    if (did) done_[phase].count.fetch_add(did, std::memory_order_acq_rel);
  }

  const int threads_;
  const int32_t* const halted_;
  const Others* const others_;
  std::unique_ptr<Counter[]> taken_, done_;
  std::atomic<int> present_{1};
  alignas(64) std::atomic<int> here_{0};
  alignas(64) std::atomic<int> round_{0};
};

}  // namespace
