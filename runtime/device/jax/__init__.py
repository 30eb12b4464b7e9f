"""Operations on tables in JAX, one module for each concept; `runtime.jax_ops` lists them."""
