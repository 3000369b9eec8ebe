/** `warren doctor`: checks whether this machine can run Warren and prints how to fix what is missing. Changes nothing. */
import type { Command } from 'commander'
import { createCommand, runCli, type Terminal } from '../cli.ts'
import { runChecks } from './check.ts'
import { listChecks } from './checks.ts'
import { canStart, renderOutcomes } from './render.ts'

const HELP = `
Each check prints one line, with the command that fixes what is missing. Nothing on the machine is changed.
Run it as root to check everything that Warren uses.

Reads WARREN_HOST, WARREN_PORT, WARREN_METRICS_PORT, WARREN_INGRESS_DOMAIN, WARREN_DATA_DIR, XDG_CACHE_HOME,
DATABASE_URL and NO_COLOR.
Exit status: 0 if nothing required is missing, 1 if something is, 2 for a wrong command line.`

export function createDoctorCommand(terminal: Terminal): Command {
  const { env, stdout } = terminal
  return createCommand('warren doctor', terminal)
    .description('Check whether this machine can run Warren')
    .option('--json', 'print an array of {name, needed, ok, detail, note, fix}')
    .addHelpText('after', HELP)
    .action(async ({ json }: { json?: boolean }) => {
      const outcomes = await runChecks(listChecks({ env, isRoot: process.getuid?.() === 0 }))
      const colour = stdout.isTTY === true && !env.NO_COLOR
      stdout.write(json ? `${JSON.stringify(outcomes, null, 2)}\n` : renderOutcomes(outcomes, { colour }))
      if (!canStart(outcomes)) terminal.exitCode = 1
    })
}

/** Returns the exit status. */
export const doctor = (args: string[], terminal: Terminal): Promise<number> =>
  runCli(createDoctorCommand(terminal), args, terminal)

if (import.meta.main) process.exitCode = await doctor(process.argv.slice(2), process)
