import type { RunPlan } from '../plan.ts'

/** What a detector found. Commands run in the folder of the project. Settings replace them field by field. */
export type Parts = {
  /** For the log, and for the table of images: `node`, `python`, … */
  runtime: string
  notes: string[]
  install: string | undefined
  build: string | undefined
  run: RunPlan | undefined
}

export const commandRun = (command: string): RunPlan => ({ kind: 'command', command, folder: '' })
export const staticRun = (folder: string, isSpa: boolean): RunPlan => ({ kind: 'static', folder, isSpa })
