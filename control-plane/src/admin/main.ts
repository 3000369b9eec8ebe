/** Entry point of `warren admin`. */

import { errorText } from '@warren/kit/error-text'
import { Failure } from '@warren/kit/failure'
import { createAdminCommand } from './cli.ts'

try {
  await createAdminCommand().parseAsync()
} catch (error) {
  const text = error instanceof Failure ? Object.values(error.data)[0] : errorText(error)
  process.stderr.write(`warren admin: ${text}\n`)
  process.exitCode = 1
}
