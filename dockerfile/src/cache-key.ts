/**
 * The key of a step in the build cache: a digest of the key before it and of everything that its result depends on.
 *
 * It covers what runs in the guest (guest-action.ts), and so ENV, ARG, USER, WORKDIR and SHELL as far as the step uses
 * them. It does not cover how the Dockerfile is written: comments, continuation lines and the spelling of variables can
 * change without running a step again. Neither does it cover what a step downloads.
 *
 * Changing the execution contract, or this file, needs a new FORMAT, because old results would be found otherwise.
 */
import { createHash } from 'node:crypto'
import { guestActionOf } from './guest-action.ts'
import type { RunStep, WorkdirStep } from './step.ts'

const FORMAT = 'step-1'

/** Of the state before the first step. `imageDigest` names the content of the base, not its name. */
export const keyOfBase = (imageDigest: string): string => digest([FORMAT, 'base', imageDigest])

export function keyOfStep(parentKey: string, step: RunStep | WorkdirStep): string {
  const action = guestActionOf(step)
  const env = action.kind === 'exec' ? Object.entries(action.env).sort(([a], [b]) => (a < b ? -1 : 1)) : []
  const values =
    action.kind === 'exec'
      ? [action.argv, env, action.cwd, action.files.map(({ path, mode, content }) => [path, mode, content])]
      : [action.path, action.mode]
  return digest([FORMAT, parentKey, action.kind, action.owner.user, action.owner.group ?? null, values])
}

/** The keys of all steps, in order. */
export function keysOfSteps(imageDigest: string, steps: readonly (RunStep | WorkdirStep)[]): string[] {
  let key = keyOfBase(imageDigest)
  return steps.map((step) => {
    key = keyOfStep(key, step)
    return key
  })
}

/** JSON of nested arrays is unambiguous: no two lists of values have the same text. */
const digest = (values: unknown[]): string => createHash('sha256').update(JSON.stringify(values)).digest('hex')
