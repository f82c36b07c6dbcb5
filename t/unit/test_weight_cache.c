/* The cache of repacked weights: one makes the file, all others map it, and nobody believes a file that is
 * not what it should be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "worker/model/weight_cache.h"

enum { WEIGHTS = 4 };

static const size_t sizes[WEIGHTS] = {5u << 20, 0, 100, 4096};
static char directory[64];

static void make_key(int number, uint8_t key[PD_DIGEST])
{
    memset(key, number, PD_DIGEST);
}

static int try_open(int number, struct pd_weight_cache **cache)
{
    struct pd_error error = {PD_OK, ""};
    uint8_t key[PD_DIGEST];

    make_key(number, key);
    return pd_weight_cache_open(directory, key, sizes, WEIGHTS, 2, cache, &error);
}

static struct pd_weight_cache *open_cache(int number)
{
    struct pd_weight_cache *cache;

    assert_int_equal(try_open(number, &cache), PD_OK);
    return cache;
}

static uint8_t byte_of(int number, size_t weight, size_t i)
{
    return (uint8_t)((size_t)number * 31 + weight * 7 + i * 13 + i / 4096);
}

static void fill(const struct pd_weight_cache *cache, int number)
{
    for (size_t w = 0; w < WEIGHTS; w++) {
        struct pd_weight_place place = pd_weight_cache_place(cache, w);

        assert_false(place.filled);
        if (sizes[w] > 0)
            assert_int_equal((uintptr_t)place.memory % 64, 0);
        for (size_t i = 0; i < sizes[w]; i++)
            ((uint8_t *)place.memory)[i] = byte_of(number, w, i);
    }
}

static void make(int number)
{
    struct pd_weight_cache *cache = open_cache(number);
    struct pd_error error = {PD_OK, ""};

    fill(cache, number);
    assert_int_equal(pd_weight_cache_keep(cache, &error), PD_OK);
    pd_weight_cache_close(cache);
}

/* Whether it was there, whole; closes it. */
static bool was_there(int number)
{
    struct pd_weight_cache *cache = open_cache(number);
    bool there = pd_weight_cache_place(cache, 0).filled;

    for (size_t w = 0; there && w < WEIGHTS; w++)
        for (size_t i = 0; i < sizes[w]; i++)
            assert_int_equal(((uint8_t *)pd_weight_cache_place(cache, w).memory)[i],
                             byte_of(number, w, i));
    pd_weight_cache_close(cache);
    return there;
}

static void path_of(int number, char path[160])
{
    int at = snprintf(path, 160, "%s/", directory);

    for (int i = 0; i < PD_DIGEST; i++)
        at += snprintf(path + at, 160 - (size_t)at, "%02x", number);
    snprintf(path + at, 160 - (size_t)at, ".pdw");
}

static int files_in(void)
{
    DIR *folder = opendir(directory);
    struct dirent *entry;
    int count = 0;

    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static int set_up(void **state)
{
    (void)state;
    strcpy(directory, "build/test-weight-cache-XXXXXX");
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", directory);
    return system(command);
}

static void test_the_second_finds_what_the_first_made(void **state)
{
    struct pd_weight_cache *one, *two;
    char path[160];
    struct stat status;

    (void)state;
    make(1);
    assert_true(was_there(1));
    assert_false(was_there(2)); /* another key; and nothing stays of it, since it was not kept */
    assert_int_equal(files_in(), 2);
    path_of(1, path);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0400);
    one = open_cache(1);
    two = open_cache(1); /* a finished file takes no lock */
    assert_true(pd_weight_cache_place(one, 3).filled && pd_weight_cache_place(two, 3).filled);
    pd_weight_cache_close(one);
    pd_weight_cache_close(two);
}

/* Changes one byte at `at` (from the end if negative), as whoever may write there could. */
static void spoil(const char *path, off_t at)
{
    struct stat status;
    uint8_t byte;
    int fd;

    assert_int_equal(chmod(path, 0600), 0);
    fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &status), 0);
    at = at < 0 ? status.st_size + at : at;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void test_what_was_spoilt_is_made_anew(void **state)
{
    /* magic, key, size, sum; the first weight's first byte, one in the middle, the last byte of all */
    static const off_t places[] = {0, 8, 40, 48, 4096, 3000001, -1};
    char path[160];

    (void)state;
    path_of(3, path);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        make(3);
        assert_true(was_there(3));
        spoil(path, places[i]);
        assert_false(was_there(3));
    }
    make(3);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 8192), 0);
    assert_false(was_there(3));
    make(3);
    assert_true(was_there(3));
}

static void test_what_others_could_write_is_not_believed(void **state)
{
    char path[160], other[200];
    struct pd_weight_cache *cache;

    (void)state;
    make(4);
    path_of(4, path);
    assert_int_equal(chmod(path, 0420), 0);
    assert_false(was_there(4));
    snprintf(other, sizeof(other), "%s.elsewhere", path);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(chmod(other, 0400), 0);
    assert_int_equal(symlink(strrchr(other, '/') + 1, path), 0);
    assert_false(was_there(4));
    make(4); /* takes the link's place */
    assert_true(was_there(4));
    assert_int_equal(chmod(directory, 0777), 0);
    assert_int_equal(try_open(4, &cache), PD_INVALID);
    assert_null(cache);
    assert_int_equal(chmod(directory, 0700), 0);
}

static void *make_slowly(void *argument)
{
    struct pd_weight_cache *cache = argument;
    struct pd_error error = {PD_OK, ""};

    nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
    fill(cache, 5);
    assert_int_equal(pd_weight_cache_keep(cache, &error), PD_OK);
    return NULL;
}

static void test_who_comes_meanwhile_waits_for_it(void **state)
{
    struct pd_weight_cache *cache = open_cache(5);
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, make_slowly, cache), 0);
    assert_true(was_there(5));
    pthread_join(thread, NULL);
    pd_weight_cache_close(cache);
}

/* A maker that dies leaves its file and no lock. */
static void test_an_unfinished_file_is_in_nobodys_way(void **state)
{
    char path[160], unfinished[200];
    FILE *file;

    (void)state;
    path_of(6, path);
    snprintf(unfinished, sizeof(unfinished), "%s.making", path);
    file = fopen(unfinished, "w");
    assert_non_null(file);
    fclose(file);
    make(6);
    assert_true(was_there(6));
    assert_int_equal(access(unfinished, F_OK), -1);
}

static void test_the_one_used_longest_ago_goes(void **state)
{
    char path[160];

    (void)state;
    for (int i = 1; i <= 8; i++) {
        struct timespec times[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};

        make(10 + i);
        path_of(10 + i, path);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    }
    assert_true(was_there(11)); /* and so it is the newest again */
    make(19);
    assert_int_equal(files_in(), 9); /* 8, and the lock */
    path_of(12, path);
    assert_int_equal(access(path, F_OK), -1);
    assert_true(was_there(11));
    assert_true(was_there(19));
}

static void test_impossible_folders(void **state)
{
    static const size_t huge[] = {SIZE_MAX / 2};
    struct pd_error error = {PD_OK, ""};
    uint8_t key[PD_DIGEST] = {0};
    struct pd_weight_cache *cache;

    (void)state;
    assert_int_equal(pd_weight_cache_open("/proc/nowhere", key, sizes, WEIGHTS, 1, &cache, &error),
                     PD_IO);
    assert_null(cache);
    assert_int_equal(pd_weight_cache_open(directory, key, huge, 1, 1, &cache, &error),
                     PD_NO_MEMORY);
    assert_null(cache);
    pd_weight_cache_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_second_finds_what_the_first_made, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_what_was_spoilt_is_made_anew, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_others_could_write_is_not_believed, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_who_comes_meanwhile_waits_for_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_an_unfinished_file_is_in_nobodys_way, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_the_one_used_longest_ago_goes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_impossible_folders, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
