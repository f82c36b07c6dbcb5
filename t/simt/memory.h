/* The device's memory on the host: pages of its own for every allocation, that nobody may touch but for
 * the time of what declared it.
 *
 *     |  inaccessible but while a launch that declared it runs, or a copy  | never accessible |
 *     |  start of the pages ...  first byte ......................... last | a guard page     |
 *
 * So a launch that reaches beyond what its operator declares, or past the end of what it does, ends
 * with a line that names both. Pinned memory is the host's too, and stays open. Any thread. */
#ifndef PD_SIMT_MEMORY_H
#define PD_SIMT_MEMORY_H

#include <stddef.h>
#include <vector>

namespace pd_simt
{

/* Zeroed, at a multiple of 16, the guard page at most 15 bytes behind the last; null: there is none. */
void *allocate(size_t bytes, bool pinned);

/* A mapping of the file, from the start of a page on; `own`: of this process, which lends it to others. */
void *allocate_file(size_t bytes, int fd, bool own);

/* Whether the address lies in such a mapping of this process's own. */
bool is_shared(const void *address);

/* Bytes of all that is allocated and not pinned. */
size_t held();

/* Null is nothing. */
void release(void *memory);

/* What the calling thread's launches from here on may touch: the allocations that these lie in. */
void declare(const void *const *addresses, int count);
const std::vector<const void *> &declared();

/* Opens the allocations that these lie in, of those that are the device's, for as long as it lives. */
class opened
{
  public:
    explicit opened(const std::vector<const void *> &addresses);
    ~opened();
    opened(const opened &) = delete;
    opened &operator=(const opened &) = delete;

  private:
    std::vector<const void *> addresses;
};

} // namespace pd_simt

#endif
