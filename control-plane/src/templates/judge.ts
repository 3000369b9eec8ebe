/**
 * What a template accepts of a Dockerfile, beyond correct syntax.
 *
 *   act on the build      FROM, RUN, ENV, ARG, USER, WORKDIR, SHELL. Of the result only ENV is kept.
 *   accepted, no effect   the rows of WITHOUT_EFFECT. Each becomes a note in the build log.
 *   refused               a second FROM, variables in FROM, and the rows of REFUSED.
 */
import { type Dockerfile, DockerfileError, type Instruction, type InstructionOf } from '@warren/dockerfile'

/** Each step is a layer of the disk while it builds. Docker's storage has the same limit. */
const STEPS_MAX = 127

/** Throws a DockerfileError for the first instruction that a template refuses. Returns notes for the build log. */
export function judgeDockerfile({ directives, instructions }: Dockerfile, platform: string): string[] {
  checkSyntax(directives.syntax)
  const [, second] = instructions.filter(({ name }) => name === 'FROM')
  for (const instruction of instructions) {
    if (instruction === second)
      throw refuse(instruction, 'a template has one stage; do everything after the first FROM')
    checkInstruction(instruction, platform)
  }
  const steps = instructions.filter(({ name }) => name === 'RUN' || name === 'WORKDIR')
  if (steps.length > STEPS_MAX) {
    throw refuse(steps[STEPS_MAX]!, `a template has at most ${STEPS_MAX} RUN and WORKDIR; join commands with &&`)
  }
  return instructions.flatMap(noteOf)
}

/** Why they are refused, and what to do instead. */
const REFUSED: Partial<Record<Instruction['name'], string>> = {
  COPY: 'a template has no files to copy from; write the file with RUN and a heredoc, or download it with RUN',
  ADD: 'a template has no files to add; download them with RUN, for example with curl',
  ONBUILD: 'a template cannot delay instructions; write them into the Dockerfile that builds on it',
  MAINTAINER: 'it is obsolete; use LABEL maintainer=…',
}

const WITHOUT_EFFECT: Partial<Record<Instruction['name'], string>> = {
  CMD: 'a sandbox starts no program; run it with exec or as a process',
  ENTRYPOINT: 'a sandbox starts no program; run it with exec or as a process',
  EXPOSE: 'every port of a sandbox can be reached through a tunnel or ingress',
  HEALTHCHECK: 'a sandbox does not run health checks',
  LABEL: 'a template has no labels',
  STOPSIGNAL: 'a sandbox has no main program to stop',
  VOLUME: 'the path is an ordinary folder of the sandbox',
}

function noteOf(instruction: Instruction): string[] {
  const why = WITHOUT_EFFECT[instruction.name]
  return why === undefined ? [] : [`line ${instruction.line}, ${instruction.name}: no effect, ${why}`]
}

function checkInstruction(instruction: Instruction, platform: string): void {
  const reason = REFUSED[instruction.name]
  if (reason !== undefined) throw refuse(instruction, reason)
  if (instruction.name === 'FROM') checkFrom(instruction, platform)
  if (instruction.name === 'RUN') checkRunFlags(instruction)
}

function checkFrom(from: InstructionOf<'FROM'>, platform: string): void {
  if (from.image.includes('$') || from.platform?.includes('$')) {
    throw refuse(from, 'a template cannot use variables in FROM; write the name of the image')
  }
  if (from.platform !== undefined && from.platform !== platform) {
    throw refuse(from, `sandboxes run on ${platform}, not on ${from.platform.slice(0, 40)}; remove --platform`)
  }
}

/** A flag that is not honoured must not be ignored: --network=none is a promise, and secrets would be missing. */
function checkRunFlags(run: InstructionOf<'RUN'>): void {
  if (run.mounts.length > 0) {
    throw refuse(run, '--mount is not available in a template; remove it, and delete caches in the same RUN')
  }
  if (run.devices.length > 0) throw refuse(run, '--device is not available in a template; remove it')
  if (run.network !== undefined && run.network !== 'default') {
    throw refuse(run, 'a build has network access like any sandbox; remove --network')
  }
  if (run.security !== undefined && run.security !== 'sandbox') {
    throw refuse(run, 'a build always runs in a separate virtual machine; remove --security')
  }
}

/** Another parser could give every line another meaning. */
function checkSyntax(syntax: { value: string; line: number } | undefined): void {
  if (syntax === undefined || /^(docker\.io\/)?docker\/dockerfile(-upstream)?([:@]|$)/.test(syntax.value)) return
  throw new DockerfileError(syntax, 'only the syntax docker/dockerfile is supported; remove the directive')
}

const refuse = (at: Instruction, problem: string) => new DockerfileError(at, problem)
