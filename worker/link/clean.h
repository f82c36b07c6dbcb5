/* Text that was cut to fit, made fit for the wire: a protobuf string must be whole UTF-8, or the reader
 * refuses the entire message. */
#ifndef PD_CLEAN_H
#define PD_CLEAN_H

/* Cuts a broken character at the end, replaces other invalid bytes by '?'. In place. */
void pd_clean_text(char *text);

#endif
