/* A library that does nothing, under whatever name it is put. */
int pd_standin(void);

int pd_standin(void)
{
    return 42;
}
