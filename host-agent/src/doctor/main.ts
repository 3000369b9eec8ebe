/** `npm run doctor`: looks at the machine, says what is there, what is missing and how to mend it. Changes nothing. */
import { parseArgs } from 'node:util'
import { runChecks } from './check.ts'
import { listChecks } from './checks.ts'
import { canStart, renderOutcomes } from './render.ts'

const HELP = `Usage: npm run doctor [-- --json]

Checks whether this machine can run Warren: one line for each check, and the command that mends what is missing.
Looks only, changes nothing. Run it as root to see everything that Warren will see.

  --json   print an array of {name, needed, ok, detail, note, fix}
  --help   print this

Reads WARREN_HOST, WARREN_PORT, WARREN_METRICS_PORT, WARREN_DATA_DIR, XDG_CACHE_HOME, DATABASE_URL and NO_COLOR.
Exit status: 0 when nothing required is missing, 1 when something is, 2 for a wrong option.
`

type Output = { write(text: string): unknown; isTTY?: boolean }

/** Gives the exit status. */
export async function doctor(
  args: string[],
  { env, stdout, stderr }: Pick<NodeJS.Process, 'env'> & { stdout: Output; stderr: Output },
): Promise<number> {
  const options = parseOptions(args)
  if (options instanceof Error) {
    stderr.write(`doctor: ${options.message}\n\n${HELP}`)
    return 2
  }
  if (options.help) {
    stdout.write(HELP)
    return 0
  }
  const outcomes = await runChecks(listChecks({ env, isRoot: process.getuid?.() === 0 }))
  const colour = stdout.isTTY === true && !env.NO_COLOR
  stdout.write(options.json ? `${JSON.stringify(outcomes, null, 2)}\n` : renderOutcomes(outcomes, { colour }))
  return canStart(outcomes) ? 0 : 1
}

function parseOptions(args: string[]): { json: boolean; help: boolean } | Error {
  try {
    const { values } = parseArgs({
      args,
      options: { json: { type: 'boolean' }, help: { type: 'boolean', short: 'h' } },
    })
    return { json: values.json ?? false, help: values.help ?? false }
  } catch (error) {
    return error as Error // parseArgs throws nothing else
  }
}

if (import.meta.main) process.exitCode = await doctor(process.argv.slice(2), process)
