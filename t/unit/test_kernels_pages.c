/* Memory whose pages become huge while it is written and read: nothing of it may change, and only what
 * was written may grow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/pages.h"

enum { REGION = 2 << 20, REGIONS = 5, TAIL = 12288 };

struct memory {
    int fd;
    uint8_t *at;
    size_t bytes;
};

static struct memory map_memory(void)
{
    struct memory memory = {.fd = memfd_create("test", MFD_CLOEXEC),
                            .bytes = (size_t)REGIONS * REGION + TAIL};

    assert_true(memory.fd >= 0);
    assert_int_equal(ftruncate(memory.fd, (off_t)memory.bytes), 0);
    memory.at = pd_pages_map(memory.fd, memory.bytes, PROT_READ | PROT_WRITE);
    assert_ptr_not_equal(memory.at, MAP_FAILED);
    return memory;
}

static void unmap_memory(struct memory memory)
{
    munmap(memory.at, memory.bytes);
    close(memory.fd);
}

/* Kilobytes that the file takes. */
static long taken(const struct memory *memory)
{
    struct stat status;

    assert_int_equal(fstat(memory->fd, &status), 0);
    return (long)status.st_blocks / 2;
}

static void pause_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
}

static void test_maps_where_a_huge_page_can_begin(void **state)
{
    struct memory memory = map_memory();

    (void)state;
    assert_int_equal((uintptr_t)memory.at % REGION, 0);
    memory.at[memory.bytes - 1] = 7; /* all of it is there */
    assert_ptr_equal(pd_pages_map(-1, 4096, PROT_READ), MAP_FAILED);
    assert_ptr_equal(pd_pages_map(memory.fd, SIZE_MAX, PROT_READ), MAP_FAILED);
    unmap_memory(memory);
}

/* Writes `word` again and again until the file takes so many regions. */
static void write_until(struct memory *memory, volatile uint64_t *word, _Atomic uint64_t *clock,
                        int regions)
{
    for (int i = 0; i < 2000 && taken(memory) < regions * (REGION / 1024); i++) {
        uint64_t before = *word;

        *word = before + 1;
        assert_int_equal(*word, before + 1);
        atomic_fetch_add(clock, 1);
        pause_a_little();
    }
    assert_int_equal(taken(memory), regions * (REGION / 1024));
}

/* One page of the second region is written, and goes on being written while the region becomes huge; then one of the
 * fourth, behind a huge one and an empty one. */
static void test_only_what_was_written_grows(void **state)
{
    struct memory memory = map_memory();
    _Atomic uint64_t clock = 0;
    struct pd_pages *pages = pd_pages_watch(memory.fd, memory.at, memory.bytes, &clock);

    (void)state;
    if (pages == NULL) {
        unmap_memory(memory);
        skip(); /* the system cannot */
    }
    memset(memory.at + REGION, 0x5a, 4096);
    write_until(&memory, (uint64_t *)(memory.at + REGION + 4096 * 32), &clock, 1);
    write_until(&memory, (uint64_t *)(memory.at + 3 * (size_t)REGION + 4096 * 500), &clock, 2);
    for (size_t i = 0; i < 4096; i++)
        assert_int_equal(memory.at[REGION + i], 0x5a);
    assert_int_equal(memory.at[REGION + 4096], 0);
    pd_pages_release(pages);
    unmap_memory(memory);
}

static void test_looks_only_when_the_clock_has_moved(void **state)
{
    struct memory memory = map_memory();
    _Atomic uint64_t clock = 0;
    struct pd_pages *pages = pd_pages_watch(memory.fd, memory.at, memory.bytes, &clock);

    (void)state;
    for (int i = 0; i < 20; i++) /* the first look, at empty memory */
        pause_a_little();
    memory.at[0] = 1;
    for (int i = 0; i < 20; i++)
        pause_a_little();
    assert_int_equal(taken(&memory), 4);
    pd_pages_release(pages);
    unmap_memory(memory);
}

static void test_refuses_what_cannot_be_huge(void **state)
{
    struct memory memory = map_memory();

    (void)state;
    assert_null(pd_pages_watch(memory.fd, memory.at, REGION - 1, NULL));
    assert_null(pd_pages_watch(memory.fd, memory.at + 4096, REGION, NULL));
    pd_pages_release(NULL);
    unmap_memory(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maps_where_a_huge_page_can_begin),
        cmocka_unit_test(test_only_what_was_written_grows),
        cmocka_unit_test(test_looks_only_when_the_clock_has_moved),
        cmocka_unit_test(test_refuses_what_cannot_be_huge),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
