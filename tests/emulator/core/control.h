/* For the control interface (vmmemu_*), which tests call beside the vendor's. */
#ifndef CONTROL_H
#define CONTROL_H

#include <stddef.h>

void lock(void);
void unlock(void);
long long call_count(void);
void journal_event(const char *name, const char *text);
void journal_clear(void);
int vmmemu_violation_read(long long index, char *text, size_t size);
void faults_clear(void);
void discard_reservations(void);
void discard_files(void);

#endif
