"""relpos within torch: operators, transforms, the compiler, modules."""
