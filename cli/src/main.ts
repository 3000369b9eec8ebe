#!/usr/bin/env node
/** Entry point of the `warren` command. */
import path from 'node:path'
import { ConfigError } from '@warren/kit/config'
import { errorText } from '@warren/kit/error-text'
import { createCli } from './cli.ts'
import { CACHE_DIR } from './config.ts'

// Inherited by every process that is started here. Cached compiled code halves the time until Warren is ready.
process.env.NODE_COMPILE_CACHE ??= path.join(CACHE_DIR, 'compiled')

try {
  await createCli().parseAsync()
} catch (error) {
  process.stderr.write(`warren: ${error instanceof ConfigError ? error.message : errorText(error)}\n`)
  process.exit(1)
}
