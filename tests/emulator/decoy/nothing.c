/* A library with the right name and none of the vendor's entry points: what a broken installation may leave behind. */
__attribute__((visibility("default"))) int not_a_driver(void)
{
    return 42;
}
