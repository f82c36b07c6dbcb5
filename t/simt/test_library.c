/* Where NVIDIA's libraries are looked for, in which order, and what is said of them: a stand-in is put
 * into every place, and taken away again from the first on. */
#include <dlfcn.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/cuda/library.h"
#include "t/simt/control.h"
#include "t/unit/kernel_rig.h"

#define FILE_NAME "libpd-standin.so.9"

/* In the order in which they are looked at; the program of a Python makes its prefix one. */
static const char *const places[] = {
    "flag",
    "toolkit/lib64",
    "toolkit/lib",
    "venv/lib/python3.11/site-packages/nvidia/cu13/lib",
    "python/lib/python3.12/dist-packages/nvidia/nccl/lib",
    "home/.local/lib/python3.9/site-packages/nvidia/cublas/lib",
};
enum { PLACES = sizeof(places) / sizeof(places[0]), PATH_BYTES = 512 };

static char root[64];          /* of all places */
static char standin[PATH_MAX]; /* the library that was built */

static void in_root(char path[PATH_BYTES], const char *name, const char *file)
{
    snprintf(path, PATH_BYTES, "%s/%s%s%s", root, name, *file ? "/" : "", file);
}

/* A stand-in, or the text of one that cannot be opened. */
static void put(const char *place, bool broken)
{
    char path[PATH_BYTES], command[PATH_MAX + 3 * PATH_BYTES], folder[PATH_BYTES];

    in_root(folder, place, "");
    in_root(path, place, FILE_NAME);
    snprintf(command, sizeof(command),
             broken ? "mkdir -p %s && echo %s > %s" : "mkdir -p %s && cp %s %s", folder,
             broken ? "text" : standin, path);
    assert_int_equal(system(command), 0);
}

static void take(const char *place)
{
    char path[PATH_BYTES];

    in_root(path, place, FILE_NAME);
    assert_int_equal(unlink(path), 0);
}

static void set(const char *variable, const char *before, const char *name)
{
    char value[2 * PATH_BYTES];

    snprintf(value, sizeof(value), "%s%s/%s", before, root, name);
    setenv(variable, value, 1);
}

static int make_places(void **state)
{
    char command[4 * PATH_BYTES];

    (void)state;
    strcpy(root, "/tmp/pd-library-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < PLACES; i++)
        put(places[i], false);
    snprintf(command, sizeof(command),
             "mkdir -p %s/python/bin && echo > %s/python/bin/python3 && chmod +x "
             "%s/python/bin/python3",
             root, root, root);
    assert_int_equal(system(command), 0);
    set("CUDA_HOME", "", "toolkit");
    set("VIRTUAL_ENV", "", "venv");
    set("HOME", "", "home");
    return 0;
}

static int remove_places(void **state)
{
    char command[PATH_BYTES];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

/* With this folder for the flag; what is on $PATH beside the stand-in's Python is nobody's. */
static bool look(struct pd_cuda_library *library, const char *flag)
{
    char folder[PATH_BYTES], *path = strdup(getenv("PATH"));
    bool found;

    in_root(folder, flag, "");
    set("PATH", "relative::/nowhere:", "python/bin");
    found = pd_cuda_library_open(FILE_NAME, folder, library);
    setenv("PATH", path, 1);
    free(path);
    return found;
}

static void test_places_in_their_order(void **state)
{
    struct pd_cuda_library library;
    char path[PATH_BYTES];
    int (*answer)(void), (*nothing)(void);

    (void)state;
    for (int i = 0; i < PLACES; i++) {
        assert_true(look(&library, "flag"));
        in_root(path, places[i], FILE_NAME);
        assert_string_equal(library.path, path);
        assert_true(pd_cuda_library_find(&library, "pd_standin", &answer));
        assert_int_equal(answer(), 42);
        assert_false(pd_cuda_library_find(&library, "pd_no_such_function", &nothing));
        pd_cuda_library_close(&library);
        assert_null(library.handle);
        take(places[i]);
    }
    assert_false(look(&library, "flag"));
    pd_cuda_library_close(&library);
    /* What the dynamic linker knows by its name, it names in full. */
    assert_true(pd_cuda_library_open("libm.so.6", NULL, &library));
    assert_true(library.path[0] == '/' && strstr(library.path, "/libm.so.6") != NULL);
    pd_cuda_library_close(&library);
}

static void test_a_file_that_does_not_open_is_passed_and_named(void **state)
{
    struct pd_cuda_library library[PD_CUDA_LIBRARIES] = {0};
    struct pd_cuda_library *first = &library[PD_CUDA_LIBRARY_CUBLASLT];
    const char *last = places[PLACES - 1];
    char text[768], expected[2 * PATH_BYTES], path[PATH_BYTES];

    (void)state;
    put("flag", true);
    put(last, false);
    assert_true(look(first, "flag"));
    pd_cuda_libraries_tell(library, text, sizeof(text));
    in_root(path, last, FILE_NAME);
    snprintf(expected, sizeof(expected), "cuBLASLt of %s, NCCL missing (libdl.so.2)", path);
    assert_string_equal(text, expected);
    pd_cuda_library_close(first);
    take(last);
    assert_false(look(first, "flag"));
    pd_cuda_libraries_tell(library, text, sizeof(text));
    in_root(path, "flag", FILE_NAME);
    snprintf(expected, sizeof(expected),
             "cuBLASLt missing (%s: file too short), NCCL missing (libdl.so.2)", path);
    assert_string_equal(text, expected);
    pd_cuda_libraries_tell(library, text, 20); /* of a place too small for it, its beginning */
    assert_string_equal(text, "cuBLASLt missing (/");
    take("flag");
}

static void test_a_device_says_what_it_has_and_does_without(void **state)
{
    struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
    const char *before = pd_simt_library_file(PD_CUDA_LIBRARY_CUBLASLT, FILE_NAME);
    const char *nccl = pd_simt_library_file(PD_CUDA_LIBRARY_NCCL, "libpd-none.so.2");
    char folder[PATH_BYTES], expected[2 * PATH_BYTES], error[512] = "";
    struct pd_device_info info;
    struct pd_device *device;
    struct pd_rig rig;

    (void)state;
    put("flag", false);
    in_root(folder, "flag", "");
    options.cuda_libraries = folder;
    pd_rig_open(&rig, &options);
    pd_device_describe(rig.device, &info);
    pd_rig_close(&rig);
    snprintf(expected, sizeof(expected),
             "cuBLASLt of %s/" FILE_NAME ", NCCL missing (libpd-none.so.2)", folder);
    assert_string_equal(info.libraries, expected);
    assert_null(strstr(info.name, "cublaslt"));
    assert_non_null(strstr(info.numerics, "cublaslt"));

    take("flag");
    pd_rig_open(&rig, &options);
    pd_device_describe(rig.device, &info);
    pd_rig_close(&rig);
    assert_string_equal(info.libraries,
                        "cuBLASLt missing (" FILE_NAME "), NCCL missing (libpd-none.so.2)");
    assert_non_null(strstr(info.name, "off: cublaslt"));
    assert_null(strstr(info.numerics, "cublaslt"));

    setenv("PD_SIMT_NO_GPU", "1", 1);
    assert_int_equal(pd_device_open(&options, &device, error, sizeof(error)),
                     PD_KERNEL_UNSUPPORTED);
    unsetenv("PD_SIMT_NO_GPU");
    assert_string_equal(error, "GPU 0 cannot be opened: no CUDA-capable device is detected; "
                               "cuBLASLt missing (" FILE_NAME "), NCCL missing (libpd-none.so.2)");
    pd_simt_library_file(PD_CUDA_LIBRARY_CUBLASLT, before);
    pd_simt_library_file(PD_CUDA_LIBRARY_NCCL, nccl);
}

/* Last: it does stay. */
static void test_what_has_worked_stays_in_memory(void **state)
{
    struct pd_cuda_library library;
    char path[PATH_BYTES];

    (void)state;
    put("flag", false);
    for (int kept = 0; kept < 2; kept++) {
        void *still;

        assert_true(look(&library, "flag"));
        in_root(path, "flag", FILE_NAME);
        if (kept)
            pd_cuda_library_keep(&library);
        pd_cuda_library_close(&library);
        still = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        assert_int_equal(still != NULL, kept);
        if (still != NULL)
            dlclose(still);
    }
    take("flag");
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places_in_their_order),
        cmocka_unit_test(test_a_file_that_does_not_open_is_passed_and_named),
        cmocka_unit_test(test_a_device_says_what_it_has_and_does_without),
        cmocka_unit_test(test_what_has_worked_stays_in_memory),
    };
    char *slash = realpath(arguments[0], standin) != NULL ? strrchr(standin, '/') : NULL;

    if (count < 1 || slash == NULL)
        return 1;
    strcpy(slash, "/standin.so");
    return cmocka_run_group_tests(tests, make_places, remove_places);
}
