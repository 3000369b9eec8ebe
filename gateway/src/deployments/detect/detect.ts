/**
 * Finds out how to build and run an upload. What the settings give wins, field by field; the rest is detected, in this order:
 *
 *   1. `hasDockerfile`, or the runtime `dockerfile`: the Dockerfile
 *   2. package.json
 *   3. requirements.txt, pyproject.toml, Pipfile
 *   4. go.mod; Cargo.toml; a lockfile of bun; index.html
 *   5. a Dockerfile
 *
 * Pure: the files were read before.
 */

import type { UploadContent } from '../../uploads/read-tar.ts'
import type { Settings } from '../../uploads/settings.ts'
import { planDockerfile } from '../dockerfile/plan.ts'
import { DEFAULT_PORT, type Plan, PlanError } from '../plan.ts'
import { detectGo, detectRust } from './compiled.ts'
import { chooseImage, type Images } from './images.ts'
import { detectJavaScript } from './javascript.ts'
import { commandRun, type Parts, staticRun } from './parts.ts'
import { openProject, type Project } from './project.ts'
import { detectPython } from './python.ts'

/** Throws a PlanError. `buildVars` become the values of ARGs. */
export function detect(
  content: UploadContent,
  settings: Settings,
  buildVars: Record<string, string>,
  images: Images,
): Plan {
  const project = openProject(content, settings.directoryPath)
  const wantsDockerfile = settings.hasDockerfile || settings.runtime === 'dockerfile'
  if (wantsDockerfile) return planDockerfile(project, settings, buildVars, images)
  const found = findParts(project, settings)
  if (!found && settings.runCommand === null && project.has('Dockerfile')) {
    return planDockerfile(project, settings, buildVars, images)
  }
  return planCommands(settings, found, images)
}

function findParts(project: Project, settings: Settings): Parts | undefined {
  const { runtime, framework } = settings
  const javaScript = (isBun: boolean) => detectJavaScript(project, { framework, isBun })
  if (runtime === 'static') return detectStatic(project, settings)
  if (runtime.startsWith('node:')) return javaScript(false)
  if (runtime.startsWith('bun:')) return javaScript(true)
  if (runtime.startsWith('python:')) return detectPython(project, framework)
  if (runtime.startsWith('golang:')) return detectGo(project)
  if (runtime.startsWith('rust:')) return detectRust(project)
  if (project.has('package.json')) return javaScript(false)
  if (['requirements.txt', 'pyproject.toml', 'Pipfile'].some(project.has)) return detectPython(project, framework)
  if (project.has('go.mod')) return detectGo(project)
  if (project.has('Cargo.toml')) return detectRust(project)
  if (project.has('bun.lock') || project.has('bun.lockb')) return javaScript(true)
  if (project.has('index.html')) return detectStatic(project, settings)
  return undefined
}

function detectStatic(project: Project, settings: Settings): Parts {
  const none: Parts = { runtime: 'static', notes: [], install: undefined, build: undefined, run: staticRun('', false) }
  if (!project.has('package.json')) return none
  const parts = detectJavaScript(project, { framework: settings.framework, isBun: false })
  const isBuilt = parts.build !== undefined || settings.buildCommand !== null
  if (!isBuilt) return none
  return { ...parts, run: parts.run?.kind === 'static' ? parts.run : staticRun('dist', false) }
}

function planCommands(settings: Settings, found: Parts | undefined, images: Images): Plan {
  const folder = settings.directoryPath ?? ''
  const install = settings.installCommand ?? found?.install
  const build = withFlag(settings.buildCommand ?? found?.build, settings.buildFlag)
  const run = chooseRun(settings, found)
  if (!run) throw new PlanError('could not detect how to run this project; set settings.runCommand')
  const steps = [
    ...(install === undefined ? [] : [{ title: 'install', command: install }]),
    ...(build === undefined ? [] : [{ title: 'build', command: build }]),
  ]
  const { image, notes } = chooseImage(settings, images)
  return {
    image,
    notes: [`detected: ${found?.runtime ?? 'settings.runCommand'}`, ...(found?.notes ?? []), ...notes],
    build: steps.length === 0 ? undefined : { kind: 'commands', steps },
    run: run.kind === 'image' ? run : { ...run, folder: joinPath(folder, run.folder) },
    port: settings.port ?? DEFAULT_PORT,
  }
}

function chooseRun({ runCommand, runFlag, buildDir }: Settings, found: Parts | undefined): Parts['run'] {
  if (runCommand !== null) return commandRun(withFlag(runCommand, runFlag)!)
  const run = found?.run
  if (run?.kind === 'command') return commandRun(withFlag(run.command, runFlag)!)
  if (run?.kind === 'static' && buildDir !== null) return { ...run, folder: buildDir }
  return run
}

const withFlag = (command: string | undefined, flag: string | null): string | undefined =>
  command === undefined || flag === null ? command : `${command} ${flag}`

const joinPath = (...parts: string[]): string => parts.filter((part) => part !== '').join('/')
