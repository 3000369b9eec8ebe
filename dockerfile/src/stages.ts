/** Splits a Dockerfile at its FROMs and evaluates what all stages share: the ARGs before the first FROM. */
import { locate, Problem } from './errors.ts'
import type { Dockerfile, Instruction, InstructionOf } from './instruction.ts'
import { type EscapeCharacter, expandWord, type WordRules } from './words.ts'

export type Stage = { from: InstructionOf<'FROM'>; instructions: StageInstruction[] }
export type StageInstruction = Exclude<Instruction, { name: 'FROM' }>

export type Scope = {
  escapeChar: EscapeCharacter
  /** Values for ARGs without one: those before the first FROM, and those of the platform. */
  globalArgs: ReadonlyMap<string, string>
  /** Counts what variables are replaced by, over the whole file. */
  spend: (characters: number) => void
}

/** The second half of `linux/amd64`. */
export type Architecture = 'amd64' | 'arm64'

/** Many times what real files need, and little enough to be read while other requests wait. */
const EXPANSION_MAX = 256 * 1024

export function openStages(
  { directives, instructions }: Dockerfile,
  architecture: Architecture,
): { scope: Scope; stages: Stage[] } {
  const globalArgs = platformArgs(architecture)
  const scope: Scope = { escapeChar: directives.escape, globalArgs, spend: createBudget() }
  const stages: Stage[] = []
  for (const instruction of instructions) {
    if (instruction.name === 'FROM') stages.push({ from: instruction, instructions: [] })
    else if (stages.length > 0) stages.at(-1)!.instructions.push(instruction)
    else if (instruction.name === 'ARG') {
      for (const { name, value } of instruction.args) {
        if (value !== undefined)
          globalArgs.set(
            name,
            locate(instruction, () => expandGlobal(scope, value)),
          )
      }
    }
  }
  return { scope, stages }
}

/** FROM, and ARG before it, can refer to the ARGs before FROM and to nothing else. */
export const expandGlobal = (scope: Scope, text: string): string => expandWord(text, wordRules(scope, scope.globalArgs))

export function wordRules(scope: Scope, variables: ReadonlyMap<string, string>): WordRules {
  return { escapeChar: scope.escapeChar, spend: scope.spend, find: (name) => variables.get(name) }
}

/** The build runs on the platform that it is for. */
function platformArgs(architecture: Architecture): Map<string, string> {
  return new Map(
    ['BUILD', 'TARGET'].flatMap((prefix) => [
      [`${prefix}PLATFORM`, `linux/${architecture}`],
      [`${prefix}OS`, 'linux'],
      [`${prefix}OSVERSION`, ''],
      [`${prefix}ARCH`, architecture],
      [`${prefix}VARIANT`, ''],
    ]),
  )
}

function createBudget(): (characters: number) => void {
  let spent = 0
  return (characters) => {
    spent += characters
    if (spent > EXPANSION_MAX) {
      throw new Problem(
        `the variables of this file expand to more than ${EXPANSION_MAX} characters; use shorter values`,
      )
    }
  }
}
