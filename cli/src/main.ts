#!/usr/bin/env node
/**
 * Entry point of the `warren` command. Everything else is imported after the cache of compiled code is enabled, which
 * halves the time until Warren is ready. Processes that are started here inherit the cache.
 */
import { enableCompileCache } from 'node:module'
import { compileCacheDir } from './compile-cache.ts'
import { CACHE_DIR, ROOT } from './config.ts'

process.env.NODE_COMPILE_CACHE ??= compileCacheDir(CACHE_DIR, ROOT)
enableCompileCache(process.env.NODE_COMPILE_CACHE)

const { ConfigError } = await import('@warren/kit/config')
const { errorText } = await import('@warren/kit/error-text')
const { createCli } = await import('./cli.ts')

try {
  await createCli().parseAsync()
} catch (error) {
  process.stderr.write(`warren: ${error instanceof ConfigError ? error.message : errorText(error)}\n`)
  process.exit(1)
}
