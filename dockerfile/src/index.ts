/**
 * Reads Dockerfiles as `docker build` does. In the order of use:
 *
 *   parseDockerfile    text → instructions
 *   openStages         instructions → stages, split at FROM
 *   evaluateStage      a stage and the image it builds on → steps, and the configuration of the resulting image
 *   guestActionOf      a step → what is run in the guest
 *   keysOfSteps        steps → keys of a build cache
 *
 * Every problem of a file is a DockerfileError with the line. Nothing here reads files, runs programs or knows the rules of
 * a service.
 */
export * from './cache-key.ts'
export { DockerfileError } from './errors.ts'
export * from './evaluate.ts'
export * from './guest-action.ts'
export type { Heredoc } from './heredocs.ts'
export * from './image.ts'
export type * from './instruction.ts'
export * from './parse.ts'
export type { PortRange } from './ports.ts'
export * from './stages.ts'
export type { Directives } from './statements.ts'
export type * from './step.ts'
