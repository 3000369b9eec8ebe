/** The entry of `npm run bench`. Ctrl-C, or a closed stdout, stops the run and what it started. */
import { onStopSignal } from '@warren/kit/stop'
import { runBench } from './cli.ts'
import { versions } from './compare/versions.ts'
import { ROWS } from './registry.ts'

const stopping = new AbortController()
onStopSignal((signal) => stopping.abort(new Error(`stopped by ${signal}`)))
process.stdout.on('error', (error) => stopping.abort(error))

const output = {
  out: (text: string) => void process.stdout.write(text),
  err: (text: string) => void process.stderr.write(text),
}
process.exitCode = await runBench(ROWS, process.argv.slice(2), output, stopping.signal, versions)
