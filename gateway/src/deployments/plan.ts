/** How a project is built and run: what the detector (detect/detect.ts) or a Dockerfile (dockerfile/plan.ts) results in. */
import type { Step } from '@warren/dockerfile'

export type Plan = {
  image: string
  /** For the log: what was found, and what differs from what the settings ask for. */
  notes: string[]
  /** Without one, the uploaded files are the result. */
  build: CommandBuild | DockerfileBuild | undefined
  run: RunPlan
  port: number
}

/** Commands of a shell, in the folder of the project. */
export type CommandBuild = { kind: 'commands'; steps: { title: string; command: string }[] }

/** Steps over the whole file system of the build sandbox. */
export type DockerfileBuild = {
  kind: 'dockerfile'
  steps: Step[]
  /** Files of the context that `.dockerignore` hides from the steps. */
  ignored: string[]
}

/** Stored with the deployment: the supervisor starts the app again with it. */
export type RunPlan =
  | { kind: 'command'; command: string; folder: string }
  | { kind: 'static'; folder: string; isSpa: boolean }
  | {
      kind: 'image'
      argv: string[]
      env: Record<string, string>
      user: string
      workdir: string
      healthcheck: string[] | undefined
    }

/** A project that cannot be deployed as it is. The text is the reason that its owner reads. */
export class PlanError extends Error {
  override name = 'PlanError'
}

/** Uploaded files are here, below the home directory of root. */
export const APP_FOLDER = 'app'
export const DEFAULT_PORT = 3000
