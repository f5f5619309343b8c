#ifndef PROFILES_H
#define PROFILES_H

struct profile {
    const char *name, *parent, *settings; /* the parent's settings come first */
};

extern const struct profile profiles[]; /* the last one has no name */

#endif
