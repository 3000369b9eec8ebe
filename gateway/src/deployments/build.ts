/** Installs and builds a project in a build sandbox, and fetches the result. */
import { createReadStream } from 'node:fs'
import path from 'node:path'
import { guestActionOf, type Step } from '@warren/dockerfile'
import { crashPoint } from '@warren/kit/crash-point'
import type { ProcessCreateBody } from '@warren/protocol'
import { uploadFile } from '../uploads/store.ts'
import { storeArtifact } from './artifacts.ts'
import { DeploymentFailure } from './failure.ts'
import {
  ARCHIVE,
  CONTEXT,
  copyFiles,
  GUEST_FOLDER,
  guestFile,
  isolatedProgram,
  makeFolder,
  packFolder,
  packSystem,
  projectCommand,
  RESULT,
  removeFiles,
  stampTime,
  unpackArchive,
} from './guest-scripts.ts'
import { APP_FOLDER, type CommandBuild, type DockerfileBuild, type Plan } from './plan.ts'
import { describeExit, isSuccess, runProcess } from './run-process.ts'
import { createSandbox } from './sandboxes.ts'
import { moveDeployment, type Work } from './work.ts'

/** Returns when the result is stored. The build sandbox is destroyed by a sweep, as soon as the deployment has moved on. */
export async function buildProject(work: Work, plan: Plan & { build: CommandBuild | DockerfileBuild }): Promise<void> {
  const { deps, deployment, log, secrets } = work
  await moveDeployment(work, 'pending')
  const sandbox = await createSandbox(work, 'build', {
    shape: deps.config.buildShape,
    rootfs: plan.image,
    envs: secrets.buildVars ?? {},
  })
  await moveDeployment(work, 'building')
  await crashPoint('build.begun')
  const limit = AbortSignal.timeout(deps.config.buildSeconds * 1_000)
  const limited: Work = { ...work, signal: AbortSignal.any([work.signal, limit]) }
  try {
    const upload = uploadFile(deps, deployment.upload_digest)
    await deps.controlPlane.putFile(sandbox.id, guestFile(ARCHIVE), () => createReadStream(upload), limited.signal)
    if (plan.build.kind === 'commands') await runCommands(limited, sandbox.id, plan.build)
    else await replayDockerfile(limited, sandbox.id, plan.build)
    await crashPoint('build.packed')
    const result = await deps.controlPlane.getFile(sandbox.id, guestFile(RESULT), limited.signal)
    const bytes = await storeArtifact(deps, deployment, result, limited.signal)
    log.note(`the result has ${(bytes / 2 ** 20).toFixed(1)} MiB`)
  } catch (error) {
    if (limit.aborted && !work.signal.aborted) {
      throw new DeploymentFailure(`the build took longer than ${deps.config.buildSeconds} s`, { cause: error })
    }
    throw error
  }
  await crashPoint('build.stored')
}

async function runCommands(work: Work, sandboxId: string, build: CommandBuild): Promise<void> {
  await runQuietly(work, sandboxId, 'unpacking the upload', unpackArchive(APP_FOLDER))
  const folder = path.posix.join(APP_FOLDER, work.deployment.settings.directoryPath ?? '')
  for (const { title, command } of build.steps) {
    work.log.note(`${title}: ${command}`)
    const exit = await runProcess(work, sandboxId, projectCommand(folder, command), 'build')
    if (!isSuccess(exit)) throw new DeploymentFailure(`the ${title} command failed: it ${describeExit(exit)}`)
  }
  await runQuietly(work, sandboxId, 'packing the result', packFolder(APP_FOLDER))
}

async function replayDockerfile(work: Work, sandboxId: string, build: DockerfileBuild): Promise<void> {
  await runQuietly(work, sandboxId, 'unpacking the upload', unpackArchive(`${GUEST_FOLDER}/${CONTEXT}`))
  if (build.ignored.length > 0) await removeIgnored(work, sandboxId, build.ignored)
  await runQuietly(work, sandboxId, 'preparing the build', stampTime())
  for (const [index, step] of build.steps.entries()) {
    work.log.note(`${index + 1}/${build.steps.length} ${step.text}`)
    for (const action of await actionsOf(work, sandboxId, step, index)) {
      const exit = await runProcess(work, sandboxId, action, 'build')
      if (!isSuccess(exit)) {
        throw new DeploymentFailure(`Dockerfile: line ${step.line}: ${step.text} ${describeExit(exit)}`)
      }
    }
  }
  await runQuietly(work, sandboxId, 'packing the result', packSystem())
}

async function removeIgnored(work: Work, sandboxId: string, ignored: string[]): Promise<void> {
  work.log.note(`.dockerignore: ${ignored.length} files are left out`)
  const list = guestFile('ignored')
  await work.deps.controlPlane.putFile(sandboxId, list, ignored.join('\0'), work.signal)
  await runQuietly(work, sandboxId, 'applying .dockerignore', removeFiles(contextOf(work), list))
}

const contextOf = (work: Work): string =>
  path.posix.join(guestFile(CONTEXT), work.deployment.settings.directoryPath ?? '')

/** Files that a step needs are uploaded first. */
async function actionsOf(work: Work, sandboxId: string, step: Step, index: number): Promise<ProcessCreateBody[]> {
  if (step.kind === 'workdir') return [makeFolder(step.workdir, step.user)]
  const put = (file: string, content: string) => work.deps.controlPlane.putFile(sandboxId, file, content, work.signal)
  if (step.kind === 'run') {
    const action = guestActionOf(step)
    if (action.kind !== 'exec') return []
    for (const file of action.files) await put(file.path, file.content)
    const modes = action.files.map((file) => ({ cmd: '/bin/chmod', args: [file.mode.toString(8), file.path] }))
    const { argv, env, workdir, user } = step
    return [...modes, isolatedProgram({ argv, env, workdir, user })]
  }
  const { from, sources, files, destination, chown = '', chmod = '' } = step
  const common = { destination, owner: chown || 'root:root', mode: chmod }
  const base = from === undefined ? contextOf(work) : '/'
  const names = sources.map((source) => path.posix.join('/', source).replace(/^\/+/, '') || '.')
  const copies =
    names.length === 0 ? [] : [copyFiles({ ...common, base, sources: names, unpacks: step.kind === 'add' })]
  if (files.length === 0) return copies
  const folder = guestFile(`heredocs/${index}`)
  for (const file of files) await put(`${folder}/${file.name}`, file.content)
  return [...copies, copyFiles({ ...common, base: folder, sources: files.map(({ name }) => name), unpacks: false })]
}

/** A step of the gateway. Its failure is not the fault of the project, unless the disk is full. */
async function runQuietly(work: Work, sandboxId: string, what: string, body: ProcessCreateBody): Promise<void> {
  const exit = await runProcess(work, sandboxId, body, 'build')
  if (!isSuccess(exit)) throw new DeploymentFailure(`${what} failed: it ${describeExit(exit)}`)
}
