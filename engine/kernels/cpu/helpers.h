// Helper threads beside a computing thread, for work that does not depend on them.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace {

// The caller of a job does not wait for threads that have not begun it, unlike at the end of an OpenMP
// region. A thread that is late misses the job. The data of a job must live as long as the job, or be
// owned by it. The threads end with their owner.
class Helpers {
 public:
  using Job = std::function<void(int)>;

  ~Helpers() { offer(nullptr, 0, true); }

  // Has threads 1 to `count` call the job once with their number.
  void offer(Job job, int count) {
    for (; started_ < count; ++started_)
      std::thread([board = board_, me = started_ + 1] { help(*board, me); }).detach();
    offer(std::make_shared<const Job>(std::move(job)), count, false);
  }

 private:
  struct Board {
    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<const Job> job;
    int count = 0;
    uint64_t number = 0;
    bool over = false;
  };

  void offer(std::shared_ptr<const Job> job, int count, bool over) {
    {
      const std::lock_guard lock(board_->mutex);
      board_->job.swap(job);
      board_->count = count;
      board_->over = over;
      ++board_->number;
    }
    board_->changed.notify_all();
  }

  static void help(Board& board, int me) {
    uint64_t seen = 0;
    for (;;) {
      std::shared_ptr<const Job> job;
      {
        std::unique_lock lock(board.mutex);
        board.changed.wait(lock, [&] { return board.number != seen; });
        if (board.over) return;
        seen = board.number;
        if (me <= board.count) job = board.job;
      }
      if (job) (*job)(me);
    }
  }

  const std::shared_ptr<Board> board_ = std::make_shared<Board>();
  int started_ = 0;
};

}  // namespace
