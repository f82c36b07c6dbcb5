/* The version of everything in this tree: what --version prints, and part of numerics_id. */
#ifndef PD_VERSION_H
#define PD_VERSION_H

#define PD_VERSION "0.1.0"

#endif
