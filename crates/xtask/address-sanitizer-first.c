/* Initializes AddressSanitizer before the constructors of all libraries: it is linked with
   -z initfirst (ld(1)). Otherwise the first malloc(3) does, also if the C library calls it with a
   lock that the initialization needs. */
void __asan_init(void);
const char *__asan_default_options(void);

__attribute__((constructor)) static void initialize(void) {
    __asan_init();
}

/* Options for programs that get no ASAN_OPTIONS, such as a CGI script. A preload library comes
   before the sanitizer's. */
const char *__asan_default_options(void) {
    return "detect_leaks=0:verify_asan_link_order=0:detect_odr_violation=0";
}
