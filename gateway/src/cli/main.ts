/** Entry point of `warren gateway`. */
import { errorText } from '@warren/kit/error-text'
import { createGatewayCommand } from './cli.ts'

try {
  await createGatewayCommand().parseAsync()
} catch (error) {
  process.stderr.write(`warren gateway: ${errorText(error)}\n`)
  process.exitCode = 1
}
