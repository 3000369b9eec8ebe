/**
 * What the command-line programs of the host agent (`warren images`, `warren bases`, `warren snapshots`, `warren doctor`) share.
 *
 * Exit status: 0 on success, 1 when the command failed, 2 for a wrong command line, which is answered with the help.
 */

import { errorText } from '@warren/kit/error-text'
import { spellCommand } from '@warren/kit/warren-command'
import { Command, CommanderError, Help } from 'commander'

type Output = { write(text: string): unknown; isTTY?: boolean }

/** The parts of `process` that a program uses; tests pass their own. */
export type Terminal = {
  env: NodeJS.ProcessEnv
  stdout: Output
  stderr: Output
  /** Set by an action that fails without an error, such as a check. */
  exitCode?: NodeJS.Process['exitCode']
}

export function createCommand(name: string, terminal: Terminal): Command {
  return new Command(name)
    .exitOverride()
    .showHelpAfterError()
    .configureHelp({
      showGlobalOptions: true,
      commandUsage: (command) => spellCommand(new Help().commandUsage(command)),
    })
    .configureOutput({
      writeOut: (text) => void terminal.stdout.write(text),
      writeErr: (text) => void terminal.stderr.write(text),
      outputError: (text, write) => write(text.replace(/^error: /, `${name}: `)),
    })
}

/** Runs a command made by `createCommand` and returns its exit status. */
export async function runCli(command: Command, args: string[], terminal: Terminal): Promise<number> {
  try {
    await command.parseAsync(args, { from: 'user' })
    return Number(terminal.exitCode ?? 0)
  } catch (error) {
    // Thrown by exitOverride after commander has printed the help or what is wrong.
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2
    terminal.stderr.write(`${command.name()}: ${oneLine(errorText(error))}\n`)
    return 1
  }
}

/** Text of other programs may span lines or contain terminal escapes. */
export const oneLine = (text: string): string => text.replace(/[\s\p{Cc}]+/gu, ' ').trim()
