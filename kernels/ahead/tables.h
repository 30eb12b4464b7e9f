/* The tables of a library: `build.py` writes them, `glue.c` reads them. */
#include <stdint.h>

typedef int32_t (*entry_t)(int64_t *, int64_t *, void **);
typedef void (*loop_t)(int64_t);
typedef struct {
    const char *module, *name, *arguments, *returned;
    entry_t entry;
} Entry;
typedef struct {
    const char *module, *name, *constants;
    loop_t loop;
} Loop;
typedef struct {
    const char *name;
    const Entry *entries; /* those of one kernel side by side; ended by one without a name */
    const Loop *loops;
} Variant;
extern const Variant maskwright_variants[]; /* the plainest first; ended by one without a name */
extern const char maskwright_digest[];
extern const char *const maskwright_classes[][2]; /* module and name of named tuples; ended by one without a module */
